"""The commands that have to be quick, without the library that reads the command lines of all the others."""
