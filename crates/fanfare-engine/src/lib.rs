//! The control plane as a pure state machine: step(now, event) -> commands.
