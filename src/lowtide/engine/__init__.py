"""Tasks whose results are files, run by any number of workers on any number of machines."""
