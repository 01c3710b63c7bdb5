"""Run tasks whose results are files, with any number of workers on any number of machines."""
