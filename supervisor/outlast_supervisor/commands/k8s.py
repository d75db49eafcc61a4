"""`outlast k8s`: the manifest of the Kubernetes Job that carries a job on."""

from __future__ import annotations

import click

from outlast_jobs.catalog import is_shipped, resolve_job
from outlast_jobs.jobfile import load_job
from outlast_supervisor.commands.run import TakesRest, rest_of
from outlast_supervisor.commands.shared import (
    SHOW_CODES,
    json_option,
    print_json,
    quiet_option,
    say,
    usage_errors,
)
from outlast_supervisor.schedulers import k8s as kubernetes


@click.command(cls=TakesRest, epilog=SHOW_CODES, options_metavar="[OPTIONS]")
@click.argument("job", metavar="JOB [-- ARGUMENTS...]")
@click.option("--image", required=True, help="The image, with outlast and torch in it.")
@click.option("--claim", required=True, help="The PersistentVolumeClaim for the run directory.")
@click.option(
    "--job-file",
    metavar="PATH",
    help=f"The job file in the container, by default {kubernetes.JOB}; it may lie on the claim, below "
    f"{kubernetes.RUNS}.",
)
@click.option("--name", help="The Job's name; by default the job's, as far as Kubernetes takes it.")
@click.option("--namespace", help="Its namespace; by default that of kubectl.")
@click.option("--gpu", type=click.IntRange(1), help="So many of nvidia.com/gpu.")
@click.option("--cpu", help='To ask for, such as "4" or "500m".')
@click.option("--memory", help='To ask for and to stay below, such as "32Gi".')
@click.option("--resource", multiple=True, metavar="NAME=N", help='Another device, such as "amd.com/gpu=1".')
@quiet_option
@json_option
@click.pass_context
@usage_errors
def k8s(
    ctx: click.Context,
    /,
    job: str,
    image: str,
    claim: str,
    job_file: str | None,
    name: str | None,
    namespace: str | None,
    gpu: int | None,
    cpu: str | None,
    memory: str | None,
    resource: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Print a Job for Kubernetes that runs JOB until it is done, for kubectl apply -f -.

    JOB is the job file here; it says how long a stop may take. In the container it is /job/job.yaml: copy the
    job's folder to /job in the image. The claim is mounted at /outlast and the run directory is /outlast/NAME.
    """
    path = resolve_job(job)
    loaded = load_job(path)
    there = job_file or (path.parent.name if is_shipped(path) else kubernetes.JOB)
    requests, limits = kubernetes.resources(gpu, cpu, memory, resource)
    named = name if name is not None else kubernetes.name_of(loaded.name)
    pod = kubernetes.Pod(named, image, claim, there, namespace, requests, limits)
    made = kubernetes.manifest(pod, named, loaded.stop.grace, rest_of(ctx))
    if as_json:
        print_json(made)
    else:
        click.echo(kubernetes.to_yaml(made), nl=False)
    if not quiet:
        run = f"{kubernetes.RUNS}/{named}"
        where = f" -n {namespace}" if namespace else ""
        say(f"outlast: follow it with: kubectl exec{where} job/{named} -- outlast logs -f {run}")
        say(f"outlast: stop it with: kubectl exec{where} job/{named} -- outlast stop {run}")
