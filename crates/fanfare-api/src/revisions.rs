//! A function's revisions, and how its requests are shared among them.

use std::collections::BTreeMap;
use std::fmt;

use fanfare_types::limits::{SHARES_MAX, TAGS_MAX};
use fanfare_types::{Tag, Target};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use crate::function::{read_bounded, read_json};
use crate::{FieldError, SandboxCounts};

/// A revision's number, or `latest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetDocument(pub Target);

impl Serialize for TargetDocument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Target::Latest => serializer.serialize_str("latest"),
            Target::Revision(number) => serializer.serialize_u32(number),
        }
    }
}

impl<'de> Deserialize<'de> for TargetDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = TargetDocument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a revision's number or \"latest\"")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<TargetDocument, E> {
                let number = u32::try_from(number).ok().filter(|number| *number > 0);
                let number = number.ok_or_else(|| E::custom("revisions are numbered from 1"))?;
                Ok(TargetDocument(Target::Revision(number)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TargetDocument, E> {
                match text {
                    "latest" => Ok(TargetDocument(Target::Latest)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl utoipa::PartialSchema for TargetDocument {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, OneOfBuilder, SchemaFormat, Type};
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(1))
            .maximum(Some(f64::from(u32::MAX)));
        let latest = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["latest"]));
        OneOfBuilder::new()
            .item(number)
            .item(latest)
            .description(Some("A revision's number, or `latest`."))
            .into()
    }
}

impl ToSchema for TargetDocument {}

/// A part of a function's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareDocument {
    /// The revision that gets it.
    pub revision: TargetDocument,
    /// How much, in per cent: 1 to 100. Those of a function add up to 100.
    #[schema(minimum = 1, maximum = 100)]
    pub weight: u32,
}

/// How requests are to be shared among revisions. What is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TrafficDocument {
    /// Of requests that name no tag. At most 8 different revisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 8)]
    pub traffic: Option<Vec<ShareDocument>>,
    /// Of requests that name one, as host `TAG--NAME` or below `/function/NAME@TAG/`. At most 16; a tag has 1 to 30
    /// characters of `a-z 0-9` and single `-`, with a letter, between letters or digits, and is not `latest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, TargetDocument>>,
}

/// A traffic document that was checked; `None`: stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficChange {
    /// Per cent of the requests that name no tag, 100 together.
    pub shares: Option<Vec<(Target, u32)>>,
    /// Revisions of those that do, in the order of the tags.
    pub tags: Option<Vec<(Tag, Target)>>,
}

impl TrafficDocument {
    /// Reads the document.
    ///
    /// # Errors
    /// [`FieldError`] names the field that has the wrong shape.
    pub fn from_json(json: &[u8]) -> Result<Self, FieldError> {
        read_bounded(json, |path| path.ends_with("].weight").then(|| "1 to 100".to_owned()))
    }

    /// Checks it.
    ///
    /// # Errors
    /// [`FieldError`] names the field that is wrong.
    pub fn check(&self) -> Result<TrafficChange, FieldError> {
        let shares = self.traffic.as_deref().map(check_shares).transpose()?;
        let tags = self.tags.as_ref().map(check_tags).transpose()?;
        Ok(TrafficChange { shares, tags })
    }
}

fn check_shares(shares: &[ShareDocument]) -> Result<Vec<(Target, u32)>, FieldError> {
    if shares.is_empty() || shares.len() > SHARES_MAX {
        let given = format!("{} shares", shares.len());
        return Err(FieldError::new("traffic", given, format!("1 to {SHARES_MAX} of them")));
    }
    let mut checked: Vec<(Target, u32)> = Vec::new();
    for (index, share) in shares.iter().enumerate() {
        let target = share.revision.0;
        if !(1..=100).contains(&share.weight) {
            return Err(FieldError::new(format!("traffic[{index}].weight"), share.weight, "1 to 100"));
        }
        if checked.iter().any(|(known, _)| *known == target) {
            return Err(FieldError::new(format!("traffic[{index}].revision"), target, "each revision once"));
        }
        checked.push((target, share.weight));
    }
    match checked.iter().map(|(_, percent)| percent).sum::<u32>() {
        100 => Ok(checked),
        sum => Err(FieldError::new("traffic", format!("{sum} per cent"), "weights that add up to 100")),
    }
}

fn check_tags(tags: &BTreeMap<String, TargetDocument>) -> Result<Vec<(Tag, Target)>, FieldError> {
    if tags.len() > TAGS_MAX {
        return Err(FieldError::new("tags", format!("{} tags", tags.len()), format!("at most {TAGS_MAX}")));
    }
    let one = |(tag, target): (&String, &TargetDocument)| {
        let checked =
            Tag::new(tag).map_err(|e| FieldError::new("tags", format!("{tag:?}"), e.to_string()))?;
        Ok((checked, target.0))
    };
    tags.iter().map(one).collect()
}

/// Answer to a change of traffic: all of it, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrafficResult {
    /// The function.
    pub name: String,
    /// Of requests that name no tag.
    pub traffic: Vec<ShareDocument>,
    /// Of requests that name one.
    pub tags: BTreeMap<String, TargetDocument>,
    /// It is kept, but requests are still shared as before: a revision that is to get some has not come up yet. They are
    /// shared as given here as soon as it has.
    pub pending: bool,
}

/// Which revision a rollback goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackDocument {
    /// Its number; left out: the newest before the current one that is not known to be broken.
    #[serde(default, deserialize_with = "crate::whole::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub to: Option<u32>,
}

impl RollbackDocument {
    /// Reads the document.
    ///
    /// # Errors
    /// [`FieldError`] names the field that has the wrong shape.
    pub fn from_json(json: &[u8]) -> Result<Self, FieldError> {
        read_json(json)
    }
}

/// The revisions of a function that are kept, the latest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RevisionListDocument {
    /// The function.
    pub name: String,
    /// Its revisions.
    pub revisions: Vec<RevisionDocument>,
}

/// One revision of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RevisionDocument {
    /// Its number.
    pub revision: u32,
    /// Whether it is the latest.
    pub latest: bool,
    /// When it was registered, in milliseconds since 1970, by the control plane's wall clock. For display: orders
    /// nothing.
    pub created_unix_ms: u64,
    /// SHA-256 of all that was registered: the same for revisions that are the same.
    pub digest: String,
    /// Per cent of the requests that name no tag.
    pub weight: u32,
    /// Tags by which it can be called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Its sandboxes.
    pub sandboxes: SandboxCounts,
    /// Why it cannot start, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<RevisionFailureDocument>,
}

/// Why a revision cannot start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionFailureDocument {
    /// When that was found, in milliseconds since 1970, by the control plane's wall clock. For display.
    pub at_unix_ms: u64,
    /// The stable code, e.g. `start-failed`.
    pub reason: String,
    /// One sentence.
    pub detail: String,
    /// Last lines that it wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log_tail: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(json: &str) -> Result<TrafficChange, FieldError> {
        TrafficDocument::from_json(json.as_bytes())?.check()
    }

    #[test]
    fn traffic_is_checked_field_by_field() {
        let good = r#"{"traffic":[{"revision":3,"weight":10},{"revision":"latest","weight":90}],"tags":{"canary":3}}"#;
        let expected = TrafficChange {
            shares: Some(vec![(Target::Revision(3), 10), (Target::Latest, 90)]),
            tags: Some(vec![(Tag::new("canary").unwrap(), Target::Revision(3))]),
        };
        assert_eq!(change(good), Ok(expected));
        assert_eq!(change("{}"), Ok(TrafficChange::default()));
        let many: Vec<_> = (1..=9).map(|n| format!(r#"{{"revision":{n},"weight":11}}"#)).collect();
        let many = format!(r#"{{"traffic":[{}]}}"#, many.join(","));
        let cases = [
            (r#"{"traffic":[]}"#, "traffic", "1 to 8"),
            (many.as_str(), "traffic", "1 to 8"),
            (
                r#"{"traffic":[{"revision":1,"weight":0},{"revision":2,"weight":100}]}"#,
                "traffic[0].weight",
                "1 to 100",
            ),
            (r#"{"traffic":[{"revision":1,"weight":101}]}"#, "traffic[0].weight", "1 to 100"),
            (
                r#"{"traffic":[{"revision":1,"weight":50},{"revision":1,"weight":50}]}"#,
                "traffic[1].revision",
                "once",
            ),
            (r#"{"traffic":[{"revision":1,"weight":99}]}"#, "traffic", "add up to 100"),
            (r#"{"traffic":[{"revision":0,"weight":100}]}"#, "traffic[0].revision", "from 1"),
            (r#"{"traffic":[{"revision":"newest","weight":100}]}"#, "traffic[0].revision", "latest"),
            (
                r#"{"traffic":[{"revision":1,"weight":-1}]}"#,
                "traffic[0].weight",
                "weight is -1; allowed: 1 to 100",
            ),
            (
                r#"{"traffic":[{"revision":1,"weight":[]}]}"#,
                "traffic[0].weight",
                "weight is []; allowed: 1 to 100",
            ),
            (r#"{"tags":{"Canary":1}}"#, "tags", "a-z"),
            (r#"{"tags":{"latest":1}}"#, "tags", "latest"),
            (r#"{"weights":{}}"#, "weights", "traffic"),
        ];
        for (json, field, mentions) in cases {
            let error = change(json).unwrap_err();
            assert!(error.field.contains(field) || error.message.contains(field), "{json}: {error:?}");
            assert!(error.message.contains(mentions), "{json}: {error:?}");
        }
    }
}
