//! Sandboxes from Linux namespaces, cgroups and seccomp, without an engine or an image.
