//! The control plane's shell: API, store, streams, timers around the engine.
