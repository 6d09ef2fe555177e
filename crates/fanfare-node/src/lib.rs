//! The node daemon's shell: one runtime or several behind a stream to the control plane.
