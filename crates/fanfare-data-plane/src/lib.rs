//! The data plane's shell: sockets and timers around the dispatcher.
