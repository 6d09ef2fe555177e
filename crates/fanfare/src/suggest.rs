//! Did you mean …?

/// How alike two names must be, as Jaro-Winkler similarity; below it a suggestion confuses more than it helps.
const SIMILARITY_MIN: f64 = 0.75;
/// Letters of a word in which one slip is no other word.
const SLIP_LETTERS_MIN: usize = 3;

/// The name among `known` that is most like `given`, if any is.
pub(crate) fn closest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (similarity(given, name), name))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)))
        .map(|(_, name)| name)
}

/// Jaro-Winkler, which sees nothing alike in short words of which two letters are swapped: one slip is alike enough.
fn similarity(given: &str, name: &str) -> f64 {
    let similarity = strsim::jaro_winkler(given, name);
    let slip = given.chars().count() >= SLIP_LETTERS_MIN && strsim::osa_distance(given, name) <= 1;
    if slip { similarity.max(SIMILARITY_MIN) } else { similarity }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_in_a_short_word_is_seen() {
        let known = ["kpa", "hpa", "fixed"];
        for (given, expected) in [("kap", Some("kpa")), ("fix", Some("fixed")), ("rps", None)] {
            assert_eq!(closest(given, known), expected, "{given}");
        }
    }

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
