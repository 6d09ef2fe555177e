//! The data plane's decisions as a pure state machine: queues, slots, deadlines.
