//! Did you mean …?

/// How alike two names must be, as Jaro-Winkler similarity; below it a suggestion confuses more than it helps.
const SIMILARITY_MIN: f64 = 0.75;

/// The name among `known` that is most like `given`, if any is.
pub(crate) fn closest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(given, name), name))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        let known = ["hello", "resize-image", "thumbnail"];
        let cases = [
            ("helo", Some("hello")),
            ("hullo", Some("hello")),
            ("resize-img", Some("resize-image")),
            ("thumbnails", Some("thumbnail")),
            ("payments", None),
            ("x", None),
        ];
        for (given, expected) in cases {
            assert_eq!(closest(given, known), expected, "{given}");
        }
    }
}
