//! Names that a function and a tag of another one would both be called by.
//!
//! The tag `canary` of `hello` is called by the host `canary--hello`. Data planes look for a function of the whole name
//! first: one that was registered later would take over the tag's requests without a word.

use fanfare_api::TrafficChange;
use fanfare_types::{FunctionName, Tag};

use super::subject::Subject;
use super::{Change, Function, Known, RegistryError};

/// The host that a tag is called by, where it could be a function's name.
fn host(tag: &Tag, name: &FunctionName) -> Option<FunctionName> {
    FunctionName::new(&format!("{tag}--{name}")).ok()
}

/// The function whose tag's host this name may be, and the tag. A tag has no `--` in it.
fn tagged(name: &FunctionName) -> Option<(Tag, FunctionName)> {
    let (tag, of) = name.as_str().split_once("--")?;
    Some((Tag::new(tag).ok()?, FunctionName::new(of).ok()?))
}

/// What must not be changing while this change is decided, besides its own subject.
pub(super) fn beside(known: &Known, change: &Change) -> Vec<Subject> {
    match change {
        Change::Create(spec) | Change::Put(spec) if !known.functions.contains_key(&spec.name) => {
            tagged(&spec.name).into_iter().map(|(_, of)| Subject::Function(of)).collect()
        }
        Change::Traffic(name, TrafficChange { tags: Some(tags), .. }) => {
            tags.iter().filter_map(|(tag, _)| host(tag, name)).map(Subject::Function).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether a function of this name may be made.
pub(super) fn check_name(known: &Known, name: &FunctionName) -> Result<(), RegistryError> {
    let Some((tag, of)) = tagged(name) else { return Ok(()) };
    let has = |function: &Function| function.tags().iter().any(|(known, _)| *known == tag);
    match known.functions.get(&of).is_some_and(has) {
        true => Err(taken(name, format!("the tag {tag} of the function {of}"))),
        false => Ok(()),
    }
}

/// Whether a function may have these tags; those that it has `before` it keeps.
pub(super) fn check_tags<'a>(
    known: &Known,
    name: &FunctionName,
    before: &Function,
    tags: impl Iterator<Item = &'a Tag>,
) -> Result<(), RegistryError> {
    let new = tags.filter(|tag| !before.tags().iter().any(|(known, _)| known == *tag));
    for host in new.filter_map(|tag| host(tag, name)) {
        if known.functions.contains_key(&host) {
            return Err(taken(&host, format!("the function {host}")));
        }
    }
    Ok(())
}

fn taken(host: &FunctionName, holder: String) -> RegistryError {
    RegistryError::HostTaken { host: host.to_string(), holder }
}
