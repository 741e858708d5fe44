package main

import "io/fs"

// shipped are the project's manifests.
var shipped fs.FS
