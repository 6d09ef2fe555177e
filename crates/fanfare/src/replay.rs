//! What the verbs that replay plans have in common: `fanfare load`, which sends them, and `fanfare sim`, which works out
//! what would come of them.

pub(crate) mod files;
pub(crate) mod functions;
pub(crate) mod plan;
pub(crate) mod report;
