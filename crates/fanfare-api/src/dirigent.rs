//! Dirigent's forms: how the load generator InVitro, and whatever else was written for that system, registers a
//! function and changes its scaling.
//!
//! Fields that a form may leave empty are as good as left out, and fields that are not known are skipped, as Dirigent
//! does: each version of InVitro sends others.

mod form;
mod patch;
mod registration;

#[cfg(test)]
mod tests;

pub use patch::DirigentPatch;
pub use registration::DirigentRegistration;
