//! The binary against a double of the control API and the data plane: output, exit codes, errors.

mod deploy;
mod double;
mod invoke;
mod reads;
mod run;
