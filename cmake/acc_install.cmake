# Filled in with the export set and package files once all targets exist.
