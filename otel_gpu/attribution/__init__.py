"""Attribution: from a Snapshot to what each workload used. Pure: it reads no file, driver or clock."""
