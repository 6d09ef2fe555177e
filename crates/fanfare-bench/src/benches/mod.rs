//! The benches.

pub(crate) mod ablations;
pub(crate) mod cold;
pub(crate) mod control;
pub(crate) mod hops;
pub(crate) mod http2;
pub(crate) mod memory;
pub(crate) mod register;
pub(crate) mod steps;
pub(crate) mod surge;
pub(crate) mod sweep;
pub(crate) mod warm;
