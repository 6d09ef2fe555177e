//! The paths of asynchronous invocations. They are taken only on hosts that name no function.

use fanfare_async::InvocationId;

use crate::names::{Rest, name_and_rest};
use crate::problem::quoted;

const CALL_PREFIX: &str = "/async-function/";
const API: &str = "/async";

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// Call this function.
    Call(&'a str, Rest<'a>),
    /// All calls, or the dead ones; with a query.
    List { dead: bool, query: &'a str },
    /// One call; with a query.
    One { id: InvocationId, what: What, query: &'a str },
    /// Something else below a path that is ours.
    Unknown,
}

/// Of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Status,
    Result,
    Replay,
}

impl Route<'_> {
    /// The methods that it has; none means any.
    pub(crate) fn methods(self) -> &'static [&'static str] {
        match self {
            Route::Call(..) | Route::Unknown => &[],
            Route::One { what: What::Status, .. } => &["GET", "HEAD", "DELETE"],
            Route::One { what: What::Replay, .. } => &["POST"],
            Route::List { .. } | Route::One { what: What::Result, .. } => &["GET", "HEAD"],
        }
    }
}

/// What a path and query mean; `None`: nothing here.
pub(crate) fn parse(path_and_query: &str) -> Option<Route<'_>> {
    if let Some(after) = path_and_query.strip_prefix(CALL_PREFIX) {
        return Some(name_and_rest(after).map_or(Route::Unknown, |(name, rest)| Route::Call(name, rest)));
    }
    let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
    let below = path.strip_prefix(API)?;
    let mut parts = match below.strip_prefix('/') {
        Some(below) => below.split('/'),
        None if below.is_empty() => return Some(Route::List { dead: false, query }),
        None => return None,
    };
    let (first, second, third) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    Some(match (first, second, third) {
        ("", None, None) => Route::List { dead: false, query },
        ("dead", None, None) => Route::List { dead: true, query },
        (id, what, None) => {
            let what = match what {
                None => Some(What::Status),
                Some("result") => Some(What::Result),
                Some("replay") => Some(What::Replay),
                Some(_) => None,
            };
            match (id.parse(), what) {
                (Ok(id), Some(what)) => Route::One { id, what, query },
                _ => Route::Unknown,
            }
        }
        _ => Route::Unknown,
    })
}

/// Checks that a query has no parameters but these, and each of them once.
pub(crate) fn check(query: &str, allowed: &[&str]) -> Result<(), String> {
    let mut seen = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !allowed.contains(&name) {
            let (name, value, there_are) = (quoted(name), quoted(value), allowed.join(", "));
            return Err(format!(
                "there is no parameter {name} here (it is given as {value}); there are: {there_are}"
            ));
        }
        if seen.contains(&name) {
            return Err(format!(
                "{name} is given more than once, the second time as {}; give it once",
                quoted(value)
            ));
        }
        seen.push(name);
    }
    Ok(())
}

/// A parameter of a query: the first of that name, as it is written.
pub(crate) fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let id: InvocationId = "d1-2a-000000000000beef".parse().unwrap();
        let one = |what, query| Some(Route::One { id, what, query });
        let cases = [
            ("/async", Some(Route::List { dead: false, query: "" })),
            ("/async/?a=b", Some(Route::List { dead: false, query: "a=b" })),
            ("/async/dead?after=x", Some(Route::List { dead: true, query: "after=x" })),
            ("/async/d1-2a-000000000000beef", one(What::Status, "")),
            ("/async/d1-2a-000000000000beef?wait=1s", one(What::Status, "wait=1s")),
            ("/async/d1-2a-000000000000beef/result", one(What::Result, "")),
            ("/async/d1-2a-000000000000beef/replay", one(What::Replay, "")),
            ("/async/d1-2a-000000000000beef/other", Some(Route::Unknown)),
            ("/async/d1-2a-000000000000beef/result/x", Some(Route::Unknown)),
            ("/async/nonsense", Some(Route::Unknown)),
            ("/async-function/", Some(Route::Unknown)),
            ("/async-function", None),
            ("/asynchronous", None),
            ("/function/async", None),
            ("/", None),
        ];
        for (path, expected) in cases {
            assert_eq!(parse(path), expected, "{path}");
        }
        let Some(Route::Call("f", rest)) = parse("/async-function/f/a%2Fb//c?x=1&x") else { panic!() };
        assert_eq!(rest.target(), "/a%2Fb//c?x=1&x");
        let Some(Route::Call("f", rest)) = parse("/async-function/f") else { panic!() };
        assert_eq!(rest.target(), "/");
    }

    #[test]
    fn parameters() {
        let query = "function=f&state=dead&empty=&bare&state=late";
        let cases = [
            ("function", Some("f")),
            ("state", Some("dead")),
            ("empty", Some("")),
            ("bare", Some("")),
            ("x", None),
        ];
        for (name, value) in cases {
            assert_eq!(parameter(query, name), value, "{name}");
        }
    }
}
