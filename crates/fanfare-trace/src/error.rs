//! What is wrong with a file or with what is asked for.

/// Characters of a wrong value that are shown.
const SHOWN_MAX: usize = 40;

/// Why there is no trace or no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// One field of a file.
    #[error("{file}, line {line}, {field}: {value:?} {problem}")]
    Field {
        /// The file, by the name it was given under.
        file: String,
        /// Counted from 1.
        line: u64,
        /// Its column.
        field: String,
        /// Its value, cut short if it is long.
        value: String,
        /// What is wrong, as the end of a sentence about the value.
        problem: String,
    },
    /// A line, or the file from there on.
    #[error("{file}, line {line}: {problem}")]
    Line {
        /// The file, by the name it was given under.
        file: String,
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// Something that was asked for.
    #[error("{0}")]
    Asked(String),
}

impl TraceError {
    pub(crate) fn field(
        file: &str,
        line: u64,
        field: &str,
        value: &str,
        problem: impl Into<String>,
    ) -> TraceError {
        let mut shown: String = value.chars().take(SHOWN_MAX).collect();
        if shown.len() < value.len() {
            shown.push('…');
        }
        let mut field_shown: String = field.chars().take(SHOWN_MAX).collect();
        if field_shown.len() < field.len() {
            field_shown.push('…');
        }
        TraceError::Field {
            file: file.to_owned(),
            line,
            field: field_shown,
            value: shown,
            problem: problem.into(),
        }
    }

    pub(crate) fn line(file: &str, line: u64, problem: impl Into<String>) -> TraceError {
        TraceError::Line { file: file.to_owned(), line, problem: problem.into() }
    }
}
