//! The Azure Functions trace, in the layout that InVitro reads: invocations, durations and memory by function.

use std::collections::BTreeMap;
use std::io::Read;

use crate::error::TraceError;
use crate::quantiles::Quantiles;
use crate::table::{Row, Table};
use crate::{COLUMNS_MAX, FUNCTIONS_MAX, NAME_BYTES_MAX, TRACE_BYTES_MAX};

/// The column that joins the files.
const FUNCTION: &str = "HashFunction";
/// Percentiles of executions, by the names of their columns …
const DURATION: &str = "percentile_Average_";
const DURATION_PERCENTILES: [f64; 7] = [0.0, 1.0, 25.0, 50.0, 75.0, 99.0, 100.0];
/// … and of memory.
const MEMORY: &str = "AverageAllocatedMb_pct";
const MEMORY_PERCENTILES: [f64; 8] = [1.0, 5.0, 25.0, 50.0, 75.0, 95.0, 99.0, 100.0];
/// Largest duration and amount of memory that is no mistake.
const VALUE_MAX: f64 = 1e12;
/// Largest count of one cell.
const COUNT_MAX: u32 = 100_000_000;
/// Largest bound of a function's sandboxes.
const SANDBOXES_MAX: u32 = 100_000_000;

/// The files of a trace.
#[derive(Debug)]
pub struct AzureFiles<R> {
    /// `invocations.csv`: how often each function is invoked in each minute.
    pub invocations: R,
    /// `durations.csv`: percentiles of executions, in milliseconds.
    pub durations: R,
    /// `memory.csv`: percentiles of memory, in MiB.
    pub memory: R,
    /// `dirigent.csv`, where there is one: bounds of each function's sandboxes.
    pub dirigent: Option<R>,
}

/// How many sandboxes a function may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleBounds {
    /// Fewest.
    pub min: u32,
    /// Most.
    pub max: u32,
}

/// One function of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceFunction {
    /// Its hash.
    pub name: String,
    /// Invocations in each column.
    pub invocations: Vec<u32>,
    /// Execution time, in milliseconds.
    pub duration_ms: Quantiles,
    /// Its mean.
    pub duration_average_ms: f64,
    /// Memory, in MiB.
    pub memory_mib: Quantiles,
    /// Its mean.
    pub memory_average_mib: f64,
    /// Bounds of its sandboxes, where the trace has some.
    pub bounds: Option<ScaleBounds>,
}

/// What of a trace was not taken as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Functions left out for want of durations.
    pub without_durations: usize,
    /// Functions left out for want of memory.
    pub without_memory: usize,
    /// Rows left out because their function had one already.
    pub duplicates: usize,
    /// Negative durations and amounts, taken as 0.
    pub negative: usize,
    /// Functions whose percentiles decrease, raised to what precedes them.
    pub unsorted: usize,
}

/// A trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// What the first column is called: minutes are counted from midnight.
    pub first_column: u32,
    /// Columns of each function.
    pub columns: usize,
    /// In the order of `invocations.csv`.
    pub functions: Vec<TraceFunction>,
    /// What was not taken as it is.
    pub repairs: Repairs,
}

/// Mean and percentiles of one function.
type Known = BTreeMap<String, (f64, Quantiles)>;

impl Trace {
    /// Reads it.
    ///
    /// # Errors
    /// What is no such file, is over a limit, or cannot be read: with file, line, column and value.
    pub fn read<R: Read>(files: AzureFiles<R>) -> Result<Trace, TraceError> {
        let mut repairs = Repairs::default();
        let durations = Table::new("durations.csv", files.durations, TRACE_BYTES_MAX);
        let durations = known(durations, "Average", DURATION, &DURATION_PERCENTILES, &mut repairs)?;
        let memory = Table::new("memory.csv", files.memory, TRACE_BYTES_MAX);
        let memory = known(memory, "AverageAllocatedMb", MEMORY, &MEMORY_PERCENTILES, &mut repairs)?;
        let bounds = match files.dirigent {
            Some(dirigent) => bounds(Table::new("dirigent.csv", dirigent, TRACE_BYTES_MAX), &mut repairs)?,
            None => BTreeMap::new(),
        };
        let table = Table::new("invocations.csv", files.invocations, TRACE_BYTES_MAX);
        let (first_column, columns, counts) = invocations(table, &mut repairs)?;
        let mut functions = Vec::with_capacity(counts.len());
        for (name, invocations) in counts {
            let Some((duration_average_ms, duration_ms)) = durations.get(&name).cloned() else {
                repairs.without_durations += 1;
                continue;
            };
            let Some((memory_average_mib, memory_mib)) = memory.get(&name).cloned() else {
                repairs.without_memory += 1;
                continue;
            };
            let bounds = bounds.get(&name).copied();
            functions.push(TraceFunction {
                name,
                invocations,
                duration_ms,
                duration_average_ms,
                memory_mib,
                memory_average_mib,
                bounds,
            });
        }
        Ok(Trace { first_column, columns, functions, repairs })
    }
}

/// Where the named columns are.
fn columns<const N: usize>(header: Row<'_>, names: &[String; N]) -> Result<[usize; N], TraceError> {
    let mut at = [0; N];
    for (at, name) in at.iter_mut().zip(names) {
        *at = header
            .fields()
            .position(|field| field == name)
            .ok_or_else(|| header.wrong(format!("there is no column {name}")))?;
    }
    Ok(at)
}

/// A function's name in this column.
fn name(row: Row<'_>, at: usize) -> Result<String, TraceError> {
    let name = row.text(at);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(plain) {
        true => Ok(name.to_owned()),
        false => Err(row.wrong_field(
            at,
            FUNCTION,
            format!("is no name of 1 to {NAME_BYTES_MAX} letters, digits, dots, dashes and underscores"),
        )),
    }
}

/// Adds one function, unless it is there already or there are too many.
fn add<T>(
    row: Row<'_>,
    all: &mut BTreeMap<String, T>,
    name: String,
    value: T,
    repairs: &mut Repairs,
) -> Result<(), TraceError> {
    if all.contains_key(&name) {
        repairs.duplicates += 1;
        return Ok(());
    }
    if all.len() == FUNCTIONS_MAX {
        return Err(row.wrong(format!("there are more than {FUNCTIONS_MAX} functions")));
    }
    all.insert(name, value);
    Ok(())
}

/// A file of means and percentiles.
fn known<R: Read>(
    mut table: Table<R>,
    average: &str,
    prefix: &str,
    percentiles: &[f64],
    repairs: &mut Repairs,
) -> Result<Known, TraceError> {
    let header = table.expect("the header")?;
    let width = header.len();
    let [function_at, average_at] = columns(header, &[FUNCTION.to_owned(), average.to_owned()])?;
    let mut value_columns = Vec::with_capacity(percentiles.len());
    for percentile in percentiles {
        let name = format!("{prefix}{percentile}");
        let [at] = columns(header, std::array::from_ref(&name))?;
        value_columns.push((at, name));
    }
    let mut known = Known::new();
    while let Some(row) = table.next()? {
        row.has(width)?;
        let mut amount = |at, column: &str| {
            let value = row.number(at, column, VALUE_MAX)?;
            repairs.negative += usize::from(value < 0.0);
            Ok(value.max(0.0))
        };
        let mean = amount(average_at, average)?;
        let values: Result<Vec<f64>, TraceError> =
            value_columns.iter().map(|(at, column)| amount(*at, column)).collect();
        let (quantiles, raised) = Quantiles::new(percentiles, &values?);
        repairs.unsorted += usize::from(raised);
        add(row, &mut known, name(row, function_at)?, (mean, quantiles), repairs)?;
    }
    Ok(known)
}

/// A file of bounds.
fn bounds<R: Read>(
    mut table: Table<R>,
    repairs: &mut Repairs,
) -> Result<BTreeMap<String, ScaleBounds>, TraceError> {
    const UPPER: &str = "ScalingUpperBound";
    const LOWER: &str = "ScalingLowerBound";
    let header = table.expect("the header")?;
    let width = header.len();
    let [function_at, upper_at, lower_at] =
        columns(header, &[FUNCTION, UPPER, LOWER].map(ToOwned::to_owned))?;
    let mut bounds = BTreeMap::new();
    while let Some(row) = table.next()? {
        row.has(width)?;
        let max = row.whole32(upper_at, UPPER, 1, SANDBOXES_MAX)?;
        let min = row.whole32(lower_at, LOWER, 0, max)?;
        add(row, &mut bounds, name(row, function_at)?, ScaleBounds { min, max }, repairs)?;
    }
    Ok(bounds)
}

/// A function and its count in each column.
type Counts = (String, Vec<u32>);

/// The file of counts: the first column's label, how many columns there are, and the functions in their order.
fn invocations<R: Read>(
    mut table: Table<R>,
    repairs: &mut Repairs,
) -> Result<(u32, usize, Vec<Counts>), TraceError> {
    let header = table.expect("the header")?;
    let width = header.len();
    let [function_at] = columns(header, &[FUNCTION.to_owned()])?;
    let label = |at: usize| header.text(at).parse::<u32>().ok();
    let first_at = (0..width).find(|at| label(*at).is_some());
    let Some((first_at, first)) = first_at.and_then(|at| Some((at, label(at)?))) else {
        return Err(header.wrong("there is no column whose name is a number of minutes"));
    };
    let columns = width - first_at;
    if columns > COLUMNS_MAX {
        return Err(header.wrong(format!("there are {columns} minutes; the limit is {COLUMNS_MAX}")));
    }
    let mut labels = Vec::with_capacity(columns);
    for (at, expected) in (first_at..width).zip(u64::from(first)..) {
        if label(at).map(u64::from) != Some(expected) {
            return Err(header.wrong_field(at, "the header", format!("stands where {expected} should be")));
        }
        labels.push(header.text(at).to_owned());
    }
    let mut seen = BTreeMap::new();
    let mut counts: Vec<Counts> = Vec::new();
    while let Some(row) = table.next()? {
        row.has(width)?;
        let name = name(row, function_at)?;
        let before = seen.len();
        add(row, &mut seen, name.clone(), (), repairs)?;
        let mut of = Vec::with_capacity(columns);
        for (column, label) in labels.iter().enumerate() {
            of.push(row.whole32(first_at + column, label, 0, COUNT_MAX)?);
        }
        if seen.len() > before {
            counts.push((name, of));
        }
    }
    Ok((first, columns, counts))
}

#[cfg(test)]
mod tests;
