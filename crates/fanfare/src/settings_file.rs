//! `fanfare.toml`: what is wrong in it is told with its line, and with what was probably meant.

use std::fs;
use std::io::Read;
use std::path::Path;

use fanfare_api::settings_fields;
use fanfare_types::limits;
use toml::de::{DeTable, DeValue};

use crate::exit::Failure;
use crate::suggest;

/// Bytes of a settings file.
const BYTES_MAX: u64 = limits::API_BODY_BYTES_MAX as u64;

/// The file as it was read.
#[derive(Debug)]
pub(crate) struct SettingsFile<'a> {
    path: &'a Path,
    text: String,
}

impl<'a> SettingsFile<'a> {
    /// Reads it; `None` when there is none.
    pub(crate) fn read(path: &'a Path) -> Result<Option<Self>, Failure> {
        let unreadable = |e| Failure::usage(format!("cannot read {}: {e}", path.display()));
        let file = match fs::File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(unreadable(e)),
        };
        let mut text = String::new();
        file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > BYTES_MAX {
            return Err(Failure::usage(format!("{} is over {BYTES_MAX} bytes", path.display())));
        }
        Ok(Some(SettingsFile { path, text }))
    }

    /// Its content, all of whose keys are settings.
    pub(crate) fn table(&self) -> Result<toml::Table, Failure> {
        let malformed = |e: toml::de::Error| {
            Failure::usage(format!("{}: {e}", self.path.display())).next(
                "mend that line: it is TOML, where texts stand in quotes (docs/functions.md has an example)",
            )
        };
        let parsed = DeTable::parse(&self.text).map_err(malformed)?;
        self.check_keys(parsed.get_ref(), &[])?;
        self.text.parse().map_err(malformed)
    }

    fn check_keys(&self, table: &DeTable<'_>, path: &[&str]) -> Result<(), Failure> {
        let Some(known) = settings_fields(path) else { return Ok(()) };
        for (key, value) in table {
            let name = key.get_ref().to_string();
            if !known.contains(&name) {
                let line = self.line(key.span().start);
                return Err(self.unknown(&name, path, &known, line));
            }
            if let DeValue::Table(inner) = value.get_ref() {
                self.check_keys(inner, &[path, &[name.as_str()]].concat())?;
            }
        }
        Ok(())
    }

    fn unknown(&self, name: &str, parents: &[&str], known: &[String], line: usize) -> Failure {
        let full = |name: &str| parents.iter().copied().chain([name]).collect::<Vec<_>>().join(".");
        let what = format!("{}:{line}: there is no setting {}", self.path.display(), full(name));
        let failure = Failure::usage(what);
        if full(name) == "code" {
            return failure.next("leave it out: the code is what is in this directory");
        }
        if let Some(meant) = suggest::closest(name, known.iter().map(String::as_str)) {
            return failure.next(format!("did you mean {}?", full(meant)));
        }
        match elsewhere(name) {
            Some(meant) => failure.next(format!("did you mean {meant}?")),
            None => failure
                .next(format!("settings here are {}; `fanfare schema` describes them", known.join(", "))),
        }
    }

    /// What is wrong with the content, with the line of the field that is wrong.
    pub(crate) fn wrong(&self, failure: Failure) -> Failure {
        let field = failure.stated.as_ref().and_then(|stated| stated.field.as_deref());
        let line =
            field.and_then(|field| self.line_of(field)).map(|line| format!(":{line}")).unwrap_or_default();
        let next =
            failure.next.clone().unwrap_or_else(|| "`fanfare schema` describes every setting".to_owned());
        Failure { what: format!("{}{line}: {}", self.path.display(), failure.what), ..failure }.next(next)
    }

    /// The line of a field by its path, or of the nearest table around it.
    fn line_of(&self, field: &str) -> Option<usize> {
        let parsed = DeTable::parse(&self.text).ok()?;
        let mut table = parsed.get_ref();
        let mut line = None;
        for name in field.split('.') {
            let Some((key, value)) = table.iter().find(|(key, _)| &**key.get_ref() == name) else { break };
            line = Some(self.line(key.span().start));
            match value.get_ref() {
                DeValue::Table(inner) => table = inner,
                _ => break,
            }
        }
        line
    }

    fn line(&self, at: usize) -> usize {
        self.text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
    }
}

/// A setting of another table that is called alike, by its path.
fn elsewhere(name: &str) -> Option<String> {
    let tables = settings_fields(&[]).unwrap_or_default();
    let nested = tables.iter().flat_map(|table| {
        let fields = settings_fields(&[table]).unwrap_or_default();
        fields.into_iter().map(move |field| (table, field))
    });
    let nested: Vec<_> = nested.collect();
    let meant = suggest::closest(name, nested.iter().map(|(_, field)| field.as_str()))?;
    nested.iter().find(|(_, field)| field == meant).map(|(table, field)| format!("{table}.{field}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> (String, String) {
        let path = Path::new("app/fanfare.toml");
        let failure = SettingsFile { path, text: text.to_owned() }.table().unwrap_err();
        (failure.what, failure.next.unwrap_or_default())
    }

    #[test]
    fn unknown_keys_are_named_with_their_line_and_what_was_meant() {
        let cases = [
            (
                "name = \"a\"\nconcurency = 4",
                "app/fanfare.toml:2: there is no setting concurency",
                "concurrency?",
            ),
            ("[scaling]\n\nmaxx = 1", ":3: there is no setting scaling.maxx", "did you mean scaling.max?"),
            ("memory = \"1GiB\"", ":1: there is no setting memory", "did you mean limits.memory_limit?"),
            (
                "[handler]\nkind = \"http\"\ncomand = []",
                ":3: there is no setting handler.comand",
                "handler.command?",
            ),
            (
                "handler = { kind = \"http\",\n  comand = [] }",
                ":2: there is no setting handler.comand",
                "command?",
            ),
            ("code = \"aa\"", ":1: there is no setting code", "in this directory"),
            ("zzz = 1", ":1: there is no setting zzz", "settings here are "),
        ];
        for (text, what, next) in cases {
            let refused = refused(text);
            assert!(refused.0.ends_with(what) || refused.0 == what, "{text}: {refused:?}");
            assert!(refused.1.contains(next), "{text}: {refused:?}");
        }
        let path = Path::new("f");
        let any = SettingsFile { path, text: "[env]\nANY_NAME = \"1\"".to_owned() };
        assert_eq!(any.table().unwrap().len(), 1);
    }

    #[test]
    fn lines_of_fields() {
        let path = Path::new("f");
        let file = SettingsFile { path, text: "name = \"a\"\n[scaling]\nmin = 1\nmax = 0\n".to_owned() };
        let cases =
            [("scaling.max", Some(4)), ("scaling.count", Some(2)), ("name", Some(1)), ("limits.tmp", None)];
        for (field, line) in cases {
            assert_eq!(file.line_of(field), line, "{field}");
        }
    }
}
