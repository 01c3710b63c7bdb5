"""Run tasks whose results are files, with any number of workers on any number of machines.

    stages of tasks ──shared──▶ results and their records in a shared folder

It knows nothing about particular stages. The modules, in reading order:

tasks       tasks, onetask, shared (runs stages together with other workers), committers
folder      folders (a disk), storefolders (an object store), plans, records, leases, heldoutputs,
            separation
results     outputs (the file format), partitions, taskscratch, localcopies
showing     workstate
Ray         raynodes, raycommands
"""
