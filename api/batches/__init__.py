"""OpenAI's Files and Batches: what is kept, who works on it, and how it survives a crash.

    records.py      FileRecord and BatchRecord, and the ways from one status to the next
    storage.py      the folder or bucket under `LIS_FILES_URL`: whole writes, exclusive creation
    file_store.py   FileStore: files by id, the parts of a batch's answer, expiry, the bound of the disk
    batch_store.py  BatchStore: batches by version
    live.py         what Redis holds: leases, cancel flags, counters
    validation.py   an input file, line by line
    keeper.py       one task per API process: takes batches that nobody has, validates them, hands them to the runner
    service.py      all of it together, as routes and the runner see it

The truth is under `LIS_FILES_URL`. What Redis holds is lost without harm.
"""
