//! What a function gets beside code and environment: secrets and configuration files.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fanfare_types::{ConfigFile, Given, SecretName, SecretPlace, SecretUse, limits};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::check::{ENV_RESERVED, ENV_RESERVED_PREFIX};
use crate::{EnvDocument, FieldError};

/// One secret that a function gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretUseDocument {
    /// Which.
    pub secret: String,
    /// As what. Default `file`.
    #[serde(rename = "as", default)]
    pub place: SecretPlaceName,
}

/// As what a function gets a secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SecretPlaceName {
    /// A file in `/run/secrets`, which has a new value within a second.
    #[default]
    File,
    /// An environment variable, which new sandboxes have with the new value. The value must be text.
    Env,
}

/// What a file holds: exactly one of both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileDocument {
    /// Text.
    Text(String),
    /// Any bytes, in base64 with padding.
    Base64(String),
}

impl FileDocument {
    /// A file that holds this: as text where it is text that takes less room so.
    #[must_use]
    pub fn new(content: &[u8]) -> Self {
        let base64 = content.len().div_ceil(3) * 4;
        match std::str::from_utf8(content) {
            Ok(text) if text_bytes(text) <= base64.max(64) => FileDocument::Text(text.to_owned()),
            _ => FileDocument::Base64(STANDARD.encode(content)),
        }
    }

    fn content(&self, field: &str) -> Result<Vec<u8>, FieldError> {
        match self {
            FileDocument::Text(text) => Ok(text.as_bytes().to_vec()),
            FileDocument::Base64(text) => STANDARD.decode(text).map_err(|_| {
                FieldError::new(field, "…", "text, or base64 with padding, without line breaks")
            }),
        }
    }
}

/// Bytes of a text in JSON, more or less.
fn text_bytes(text: &str) -> usize {
    let escaped = |c: char| match c {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        c if c.is_control() => 6,
        c => c.len_utf8(),
    };
    text.chars().map(escaped).sum()
}

/// As written in a document.
pub(crate) fn secrets(given: &Given) -> BTreeMap<String, SecretUseDocument> {
    let document = |used: &SecretUse| {
        let place = match used.place {
            SecretPlace::Env(_) => SecretPlaceName::Env,
            SecretPlace::File(_) => SecretPlaceName::File,
        };
        (used.place.name().to_owned(), SecretUseDocument { secret: used.secret.to_string(), place })
    };
    given.secrets.iter().map(document).collect()
}

/// As written in a document.
pub(crate) fn files(given: &Given) -> BTreeMap<String, FileDocument> {
    given.files.iter().map(|file| (file.path.clone(), FileDocument::new(&file.content))).collect()
}

/// Checks both.
pub(crate) fn given(
    secrets: BTreeMap<String, SecretUseDocument>,
    files: &BTreeMap<String, FileDocument>,
    env: &EnvDocument,
) -> Result<Given, FieldError> {
    Ok(Given { secrets: checked_secrets(secrets, env)?, files: checked_files(files)? })
}

fn checked_secrets(
    secrets: BTreeMap<String, SecretUseDocument>,
    env: &EnvDocument,
) -> Result<Vec<SecretUse>, FieldError> {
    let (count, most) = (secrets.len(), limits::SECRETS_PER_FUNCTION_MAX);
    if count > most {
        return Err(FieldError::new("secrets", format!("{count} secrets"), format!("at most {most}")));
    }
    let mut checked = Vec::with_capacity(count);
    for (name, used) in secrets {
        let max = limits::SECRET_PLACE_LEN_MAX;
        if !is_part(&name) || name.len() > max {
            let limit = format!("names of 1 to {max} of A-Z a-z 0-9 _ . -, without . or - at the beginning");
            return Err(FieldError::new("secrets", format!("a name {name:?}"), limit));
        }
        if ENV_RESERVED.contains(&name.as_str()) || name.starts_with(ENV_RESERVED_PREFIX) {
            let limit = format!("names other than {} and {ENV_RESERVED_PREFIX}…", ENV_RESERVED.join(", "));
            return Err(FieldError::new("secrets", format!("a name {name:?}"), limit));
        }
        let secret = SecretName::new(&used.secret).map_err(|e| FieldError {
            message: format!("secrets.{name}.secret {e}"),
            ..FieldError::new(format!("secrets.{name}.secret"), format!("{:?}", used.secret), e.to_string())
        })?;
        let place = match used.place {
            SecretPlaceName::File => SecretPlace::File(name),
            SecretPlaceName::Env if env.0.iter().any(|(known, _)| *known == name) => {
                let field = format!("secrets.{name}");
                return Err(FieldError::disagreeing(field, "a variable of env, too", "one of both"));
            }
            SecretPlaceName::Env => SecretPlace::Env(name),
        };
        checked.push(SecretUse { secret, place });
    }
    Ok(checked)
}

fn checked_files(files: &BTreeMap<String, FileDocument>) -> Result<Vec<ConfigFile>, FieldError> {
    let (count, most) = (files.len(), limits::FILES_MAX);
    if count > most {
        return Err(FieldError::new("files", format!("{count} files"), format!("at most {most}")));
    }
    let mut checked: Vec<ConfigFile> = Vec::with_capacity(count);
    for (path, file) in files {
        let (max, parts) = (limits::FILE_PATH_LEN_MAX, limits::FILE_PATH_PARTS_MAX);
        if path.len() > max || path.split('/').count() > parts || !path.split('/').all(is_part) {
            let limit = format!(
                "relative paths of at most {max} characters and {parts} parts of A-Z a-z 0-9 _ . -, without . or - at the \
                 beginning of one"
            );
            return Err(FieldError::new("files", format!("a path {path:?}"), limit));
        }
        let within =
            |other: &ConfigFile| path.strip_prefix(&other.path).is_some_and(|rest| rest.starts_with('/'));
        if let Some(other) = checked.iter().find(|other| within(other)) {
            let value = format!("below {}", other.path);
            return Err(FieldError::disagreeing(format!("files.{path}"), value, "below no other file"));
        }
        let field = format!("files.{path}");
        let content = file.content(&field)?;
        let (len, max) = (content.len(), limits::FILE_BYTES_MAX);
        if len > max {
            return Err(FieldError::new(field, format!("{len} bytes"), format!("at most {max} bytes")));
        }
        checked.push(ConfigFile { path: path.clone(), content: content.into() });
    }
    let (bytes, max) =
        (checked.iter().map(|file| file.content.len()).sum::<usize>(), limits::FILES_BYTES_MAX);
    if bytes > max {
        let limit = format!("at most {max} bytes together");
        return Err(FieldError::disagreeing("files", format!("{bytes} bytes"), limit));
    }
    Ok(checked)
}

/// One part of a path that means nothing but itself.
fn is_part(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    !name.is_empty() && name.bytes().all(inner) && !name.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(secrets: &[(&str, &str, SecretPlaceName)], files: &[(&str, &str)]) -> Option<FieldError> {
        let secrets = secrets.iter().map(|(name, secret, place)| {
            ((*name).to_owned(), SecretUseDocument { secret: (*secret).to_owned(), place: *place })
        });
        let files =
            files.iter().map(|(path, text)| ((*path).to_owned(), FileDocument::Text((*text).to_owned())));
        let env = EnvDocument(vec![("TAKEN".to_owned(), "1".to_owned())]);
        given(secrets.collect(), &files.collect(), &env).err()
    }

    #[test]
    fn names_and_paths_mean_nothing_but_themselves() {
        use SecretPlaceName::{Env, File};
        let good = [("DB_PASSWORD", "db", Env), ("db.key", "db", File), ("TAKEN", "db", File)];
        assert_eq!(refused(&good, &[("a", "1"), ("b/c.json", "2"), ("b/d", "3")]), None);
        for name in ["", ".", "..", ".a", "a/b", "a b", "PORT", "FANFARE_X", "ä", &"x".repeat(129)] {
            assert!(refused(&[(name, "db", File)], &[]).is_some(), "{name:?}");
        }
        assert!(refused(&[("A", "Db", Env)], &[]).is_some_and(|e| e.field == "secrets.A.secret"));
        assert!(refused(&[("TAKEN", "db", Env)], &[]).is_some_and(|e| e.disagrees));
        for path in ["", "/a", "a//b", "a/", "../a", "a/../b", "a/.b", "1/2/3/4/5/6/7/8/9"] {
            assert!(refused(&[], &[(path, "")]).is_some(), "{path:?}");
        }
        assert!(refused(&[], &[("a", ""), ("a/b", "")]).is_some_and(|e| e.disagrees));
        assert!(refused(&[], &[("a", ""), ("a.b", ""), ("a/b", "")]).is_some_and(|e| e.disagrees));
    }

    #[test]
    fn amounts_are_bounded() {
        use SecretPlaceName::File;
        let names: Vec<_> = (0..65).map(|n| format!("f{n}")).collect();
        let uses: Vec<_> = names.iter().map(|name| (name.as_str(), "db", File)).collect();
        assert_eq!(refused(&uses[..64], &[]), None);
        assert!(refused(&uses, &[]).is_some_and(|e| e.field == "secrets"));
        let paths: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert_eq!(refused(&[], &paths[..64]), None);
        assert!(refused(&[], &paths).is_some());
        let most = "x".repeat(limits::FILE_BYTES_MAX);
        assert_eq!(refused(&[], &[("a", &most), ("b", &most), ("c", &most), ("d", &most)]), None);
        assert!(refused(&[], &[("a", &format!("{most}x"))]).is_some_and(|e| e.field == "files.a"));
        let over = refused(&[], &[("a", &most), ("b", &most), ("c", &most), ("d", &most), ("e", "x")]);
        assert!(over.is_some_and(|e| e.disagrees));
    }

    #[test]
    fn a_file_takes_the_smaller_form_and_is_itself_again() {
        let quotes = vec![b'"'; 1_000];
        let nul = vec![0_u8; 1_000];
        for content in [&b"plain\ntext\n"[..], &[0, 255, 1], b"", &quotes, &nul, "ü".as_bytes()] {
            let document = FileDocument::new(content);
            assert_eq!(document.content("f").unwrap(), content);
            assert!(serde_json::to_string(&document).unwrap().len() <= content.len() * 4 / 3 + 100);
        }
    }
}
