//! A plan as a file, so that it can be replayed anywhere: comma-separated values, a table of functions and one of
//! invocations below a few lines of settings.
//!
//! The first line says which form it is. A form that this release does not know is refused.

use std::io::{Read, Write};

use crate::error::TraceError;
use crate::plan::{Invocation, Plan, PlanFunction};
use crate::table::{Row, Table};
use crate::{
    EXECUTION_MS_MAX, FUNCTIONS_MAX, INITIAL_MAX, INVOCATIONS_MAX, MEMORY_MIB_MAX, PLAN_BYTES_MAX,
    SPAN_US_MAX,
};

/// What the first line begins with.
const MAGIC: &str = "fanfare-plan";
/// The form that is written and read.
const VERSION: u32 = 1;
/// Columns of functions …
const FUNCTION_COLUMNS: [&str; 5] = ["name", "memory_mib", "initial", "min", "max"];
/// … and of invocations.
const INVOCATION_COLUMNS: [&str; 5] = ["at_us", "function", "execution_ms", "memory_mib", "column"];
/// Rows for which room is made before they are there.
const ROOM_MAX: usize = 1 << 16;

impl Plan {
    /// Writes it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let mut out = csv::WriterBuilder::new().flexible(true).from_writer(out);
        let mut row = |fields: &[&str]| out.write_record(fields);
        row(&[MAGIC, &VERSION.to_string()])?;
        row(&["seed", &self.seed.to_string()])?;
        row(&["source", &self.source])?;
        row(&["span_us", &self.span_us.to_string()])?;
        row(&["warm_up_us", &self.warm_up_us.to_string()])?;
        row(&["functions", &self.functions.len().to_string()])?;
        row(&FUNCTION_COLUMNS)?;
        for function in &self.functions {
            let PlanFunction { name, memory_mib, initial, min, max } = function;
            let numbers = [memory_mib, initial, min, max].map(ToString::to_string);
            row(&[name, &numbers[0], &numbers[1], &numbers[2], &numbers[3]])?;
        }
        row(&["invocations", &self.invocations.len().to_string()])?;
        row(&INVOCATION_COLUMNS)?;
        for invocation in &self.invocations {
            let Invocation { at_us, function, execution_ms, memory_mib, column } = *invocation;
            let numbers = [function, execution_ms, memory_mib, column].map(|number| number.to_string());
            row(&[&at_us.to_string(), &numbers[0], &numbers[1], &numbers[2], &numbers[3]])?;
        }
        out.flush()
    }

    /// Reads one; `file` is the name by which errors call it.
    ///
    /// # Errors
    /// What is no plan, of another form, over a limit, incomplete, or cannot be read: with file, line, column and value.
    pub fn read(file: &str, reader: impl Read) -> Result<Plan, TraceError> {
        let mut table = Table::new(file, reader, PLAN_BYTES_MAX);
        let first = table.expect("a plan's first line")?;
        if first.len() != 2 || first.text(0) != MAGIC {
            return Err(first.wrong(format!("a plan begins with {MAGIC},{VERSION}")));
        }
        first.whole32(1, "the form's version", VERSION, VERSION)?;
        let mut plan = Plan { seed: setting(&mut table, "seed", u64::MAX)?, ..Plan::default() };
        plan.source = source(table.expect("source")?)?;
        plan.span_us = setting(&mut table, "span_us", SPAN_US_MAX)?;
        plan.warm_up_us = setting(&mut table, "warm_up_us", SPAN_US_MAX)?;
        let functions = setting(&mut table, "functions", FUNCTIONS_MAX as u64)?;
        header(table.expect("the header of functions")?, &FUNCTION_COLUMNS)?;
        for _ in 0..functions {
            plan.functions.push(function(table.expect("a function")?)?);
        }
        let invocations = setting(&mut table, "invocations", INVOCATIONS_MAX as u64)?;
        header(table.expect("the header of invocations")?, &INVOCATION_COLUMNS)?;
        plan.invocations.reserve(ROOM_MAX.min(usize::try_from(invocations).unwrap_or(ROOM_MAX)));
        let mut before = 0;
        for _ in 0..invocations {
            let row = table.expect("an invocation")?;
            let invocation = invocation(row)?;
            if let Some(problem) = invocation.problem(plan.functions.len(), plan.span_us, before) {
                return Err(row.wrong(problem));
            }
            before = invocation.at_us;
            plan.invocations.push(invocation);
        }
        if let Some(row) = table.next()? {
            return Err(
                row.wrong(format!("there is more after the {invocations} invocations that were announced"))
            );
        }
        plan.check().map_err(|error| TraceError::line(file, 1, error.to_string()))?;
        Ok(plan)
    }
}

/// A line of a name and a number.
fn setting(table: &mut Table<impl Read>, name: &str, max: u64) -> Result<u64, TraceError> {
    let row = table.expect(name)?;
    named(row, name)?;
    row.whole(1, name, 0, max)
}

fn source(row: Row<'_>) -> Result<String, TraceError> {
    const SOURCE_BYTES_MAX: usize = 1_024;
    named(row, "source")?;
    let text = row.text(1);
    if text.len() > SOURCE_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(row.wrong_field(1, "source", format!("is no line of at most {SOURCE_BYTES_MAX} bytes")));
    }
    Ok(text.to_owned())
}

fn named(row: Row<'_>, name: &str) -> Result<(), TraceError> {
    row.has(2)?;
    match row.text(0) == name {
        true => Ok(()),
        false => Err(row.wrong_field(0, "setting", format!("stands where {name} should be"))),
    }
}

fn header(row: Row<'_>, columns: &[&str]) -> Result<(), TraceError> {
    match row.fields().eq(columns.iter().copied()) {
        true => Ok(()),
        false => Err(row.wrong(format!("the header is not {}", columns.join(",")))),
    }
}

fn function(row: Row<'_>) -> Result<PlanFunction, TraceError> {
    row.has(FUNCTION_COLUMNS.len())?;
    let number = |at: usize, max| row.whole32(at, FUNCTION_COLUMNS[at], 0, max);
    Ok(PlanFunction {
        name: row.text(0).to_owned(),
        memory_mib: number(1, MEMORY_MIB_MAX)?,
        initial: number(2, INITIAL_MAX)?,
        min: number(3, u32::MAX)?,
        max: number(4, u32::MAX)?,
    })
}

fn invocation(row: Row<'_>) -> Result<Invocation, TraceError> {
    row.has(INVOCATION_COLUMNS.len())?;
    let number = |at: usize, max| row.whole32(at, INVOCATION_COLUMNS[at], 0, max);
    Ok(Invocation {
        at_us: row.whole(0, INVOCATION_COLUMNS[0], 0, SPAN_US_MAX)?,
        function: number(1, u32::MAX)?,
        execution_ms: number(2, EXECUTION_MS_MAX)?,
        memory_mib: number(3, MEMORY_MIB_MAX)?,
        column: number(4, u32::MAX)?,
    })
}

#[cfg(test)]
mod tests;
