"""What a job is on disk, and nothing that runs: the words and formats which supervisor and worker share.

Vocabulary, used unchanged everywhere:

job         what a person asks for: a job file naming a command and its policies
run         one job being carried to its end; it owns one run directory and has a run id
attempt     one launch of the worker, numbered from 1 over the whole run, across nodes and reboots
worker      the training program, any process tree; the trainer is the process that attached
boundary    the moment after a whole optimizer update and its scheduler step
generation  one sealed checkpoint of one step by one attempt; valid as a whole or not at all
sealed      its index is written and its directory has its final name
verdict     what was found of a generation, with the reason
healthy     the recorded loss and state were finite
cadence     save every N steps or every T seconds, whichever comes first
deadline    the moment at which the machine will be taken away, where one is known
notice      anything that says the machine goes
held        the run is not to be started again until a person releases it
"""

__version__ = "0.1.0"
