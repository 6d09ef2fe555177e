//! Secrets: set with their value, answered without.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fanfare_types::{SecretValue, limits};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use zeroize::Zeroizing;

use crate::FieldError;

/// What a secret is to hold: exactly one of both.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SecretValueDocument {
    /// As text, which is kept as its bytes in UTF-8. 1 byte to 64 KiB.
    #[schema(value_type = String)]
    Value(Zeroizing<String>),
    /// Any bytes, in base64 with padding (RFC 4648, section 4). 1 byte to 64 KiB.
    #[schema(value_type = String)]
    ValueBase64(Zeroizing<String>),
}

/// What is told of a secret: never its value, nor anything that is computed from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretDocument {
    /// Its name.
    pub name: String,
    /// Counts from 1 with each value that it was given.
    pub version: u64,
    /// When it was set first, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// When it got its present value, in milliseconds since 1970.
    pub updated_unix_ms: u64,
    /// Functions that use it, in the order of their names, then webhooks whose senders are known by it, as `webhook NAME`.
    pub used_by: Vec<String>,
}

/// All secrets in the order of their names: at most 1,000.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretListDocument {
    /// The secrets.
    pub secrets: Vec<SecretDocument>,
}

impl fmt::Debug for SecretValueDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field())
    }
}

impl SecretValueDocument {
    /// Reads one. The caller bounds `json` (`limits::API_BODY_BYTES_MAX`).
    ///
    /// # Errors
    /// The field that is wrong; what was given is not repeated, for it may be the secret.
    pub fn from_json(json: &[u8]) -> Result<Self, FieldError> {
        serde_json::from_slice(json).map_err(|_| {
            let limit = "one JSON object with either `value` or `value_base64`, a string";
            FieldError { message: format!("body: give {limit}"), ..FieldError::new("body", "…", limit) }
        })
    }

    /// The value.
    ///
    /// # Errors
    /// It is empty, too long, or not base64.
    pub fn value(&self) -> Result<SecretValue, FieldError> {
        let max = limits::SECRET_BYTES_MAX;
        let bytes = match self {
            SecretValueDocument::Value(text) => text.as_bytes().to_vec(),
            SecretValueDocument::ValueBase64(text) => {
                let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
                let decoded = STANDARD.decode_vec(text.as_bytes(), &mut bytes);
                if decoded.is_err() {
                    drop(Zeroizing::new(bytes));
                    return Err(FieldError::new(
                        self.field(),
                        "…",
                        "base64 with padding, without line breaks",
                    ));
                }
                bytes
            }
        };
        let (count, value) = (bytes.len(), SecretValue::new(bytes));
        match count {
            0 => Err(FieldError::new(self.field(), "empty", format!("1 to {max} bytes"))),
            _ if count > max => {
                Err(FieldError::new(self.field(), format!("{count} bytes"), format!("1 to {max} bytes")))
            }
            _ => Ok(value),
        }
    }

    fn field(&self) -> &'static str {
        match self {
            SecretValueDocument::Value(_) => "value",
            SecretValueDocument::ValueBase64(_) => "value_base64",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Vec<u8>, FieldError> {
        SecretValueDocument::from_json(json.as_bytes())?.value().map(|value| value.expose().to_vec())
    }

    #[test]
    fn values_are_read_as_text_or_bytes() {
        assert_eq!(read(r#"{"value":"gr\u00fcn\n"}"#).unwrap(), "grün\n".as_bytes());
        assert_eq!(read(r#"{"value_base64":"AAH/"}"#).unwrap(), [0, 1, 255]);
        let most = "x".repeat(limits::SECRET_BYTES_MAX);
        assert_eq!(read(&format!(r#"{{"value":"{most}"}}"#)).unwrap().len(), most.len());
        assert_eq!(read(&format!(r#"{{"value":"{most}y"}}"#)).unwrap_err().field, "value");
    }

    #[test]
    fn nothing_that_may_be_a_secret_is_repeated() {
        for json in [
            r#"{"value":["canary"]}"#,
            r#"{"value":"x","canary":"canary"}"#,
            r#"{"canary":"x"}"#,
            r#"{"value":null}"#,
            r#""canary""#,
            r#"{"value":"canary","value_base64":"canary"}"#,
            r#"{"value_base64":"canary"}"#,
            r#"{"value_base64":""}"#,
            r#"{"value":""}"#,
            "canary",
            "{}",
        ] {
            let error = read(json).unwrap_err();
            assert!(!format!("{error:?}").contains("canary"), "{json}: {error:?}");
        }
        let document = SecretValueDocument::from_json(br#"{"value":"canary"}"#).unwrap();
        assert_eq!(format!("{document:?}"), "value");
    }
}
