//! A plan: every invocation, written down.

use crate::error::TraceError;
use crate::{
    EXECUTION_MS_MAX, FUNCTIONS_MAX, INITIAL_MAX, INVOCATIONS_MAX, MEMORY_MIB_MAX, NAME_BYTES_MAX,
    SPAN_US_MAX,
};

/// Load: who is called when, and what for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The seed that all was drawn from.
    pub seed: u64,
    /// What it was made of, in words.
    pub source: String,
    /// How long it lasts, in microseconds: no invocation is due at or after it.
    pub span_us: u64,
    /// What is due before this is warm-up, in microseconds.
    pub warm_up_us: u64,
    /// What is called.
    pub functions: Vec<PlanFunction>,
    /// Ascending by time.
    pub invocations: Vec<Invocation>,
}

/// A function that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFunction {
    /// Its name, as in the trace.
    pub name: String,
    /// Memory that each of its sandboxes should reserve, in MiB.
    pub memory_mib: u32,
    /// Sandboxes that it begins with.
    pub initial: u32,
    /// Fewest sandboxes.
    pub min: u32,
    /// Most sandboxes; 0 where there is no bound but the platform's.
    pub max: u32,
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// When it is due, in microseconds from the beginning.
    pub at_us: u64,
    /// Which of [`Plan::functions`] is called.
    pub function: u32,
    /// How long it is to execute, in milliseconds.
    pub execution_ms: u32,
    /// How much memory it is to use, in MiB.
    pub memory_mib: u32,
    /// The trace's column that it comes from, counted from the plan's first.
    pub column: u32,
}

impl Plan {
    /// Whether an invocation is warm-up.
    #[must_use]
    pub fn is_warm_up(&self, invocation: &Invocation) -> bool {
        invocation.at_us < self.warm_up_us
    }

    /// Checks what every reader of a plan relies on: that it is within its limits, and ascending by time.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), TraceError> {
        let wrong = |what: String| Err(TraceError::Asked(what));
        if self.functions.len() > FUNCTIONS_MAX {
            return wrong(format!(
                "there are {} functions; the limit is {FUNCTIONS_MAX}",
                self.functions.len()
            ));
        }
        if self.invocations.len() > INVOCATIONS_MAX {
            let count = self.invocations.len();
            return wrong(format!("there are {count} invocations; the limit is {INVOCATIONS_MAX}"));
        }
        if self.span_us > SPAN_US_MAX {
            return wrong(format!(
                "it lasts {} s; the limit is {} s",
                self.span_us / 1_000_000,
                SPAN_US_MAX / 1_000_000
            ));
        }
        for (number, function) in self.functions.iter().enumerate() {
            if let Some(problem) = function.problem() {
                return wrong(format!("function {number}: {problem}"));
            }
        }
        let mut before = 0;
        for (number, invocation) in self.invocations.iter().enumerate() {
            if let Some(problem) = invocation.problem(self.functions.len(), self.span_us, before) {
                return wrong(format!("invocation {number}: {problem}"));
            }
            before = invocation.at_us;
        }
        Ok(())
    }
}

impl PlanFunction {
    fn problem(&self) -> Option<String> {
        let name = &self.name;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(|c| c.is_ascii_graphic()) {
            return Some(format!("its name {name:?} has not 1 to {NAME_BYTES_MAX} visible ASCII characters"));
        }
        if self.memory_mib > MEMORY_MIB_MAX {
            return Some(format!("it reserves {} MiB; the limit is {MEMORY_MIB_MAX}", self.memory_mib));
        }
        if self.initial > INITIAL_MAX {
            return Some(format!("it begins with {} sandboxes; the limit is {INITIAL_MAX}", self.initial));
        }
        if self.max > 0 && self.min > self.max {
            return Some(format!("it has at least {} and at most {} sandboxes", self.min, self.max));
        }
        None
    }
}

impl Invocation {
    /// What is wrong with it, in a plan of so many functions that lasts so long, after one that is due at `before`.
    pub(crate) fn problem(&self, functions: usize, span_us: u64, before: u64) -> Option<String> {
        if self.at_us < before {
            return Some(format!("it is due at {} µs, before the one that precedes it", self.at_us));
        }
        if self.at_us >= span_us {
            return Some(format!("it is due at {} µs, and the plan lasts {span_us} µs", self.at_us));
        }
        if self.function as usize >= functions {
            return Some(format!("it calls function {}, and there are {functions}", self.function));
        }
        if self.execution_ms > EXECUTION_MS_MAX {
            return Some(format!("it takes {} ms; the limit is {EXECUTION_MS_MAX}", self.execution_ms));
        }
        if self.memory_mib > MEMORY_MIB_MAX {
            return Some(format!("it uses {} MiB; the limit is {MEMORY_MIB_MAX}", self.memory_mib));
        }
        None
    }
}
