//! Names of sandboxes, each kept once.

use std::collections::BTreeMap;

/// Names that are told apart; later ones are not known.
const NAMES_MAX: usize = 1 << 20;

/// Numbers for names, in the order in which they come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    numbers: BTreeMap<String, u32>,
}

impl Names {
    /// The number of a name; `None` if there are too many.
    pub(crate) fn number(&mut self, name: &str) -> Option<u32> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let number = u32::try_from(self.numbers.len()).ok()?;
        if self.numbers.len() == NAMES_MAX {
            return None;
        }
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    /// The names by their numbers.
    pub(crate) fn into_vec(self) -> Vec<String> {
        let mut names = vec![String::new(); self.numbers.len()];
        for (name, number) in self.numbers {
            names[number as usize] = name;
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_number() {
        let mut names = Names::default();
        let numbers = ["b", "a", "b", "c"].map(|name| names.number(name).unwrap());
        assert_eq!(numbers, [0, 1, 0, 2]);
        assert_eq!(names.into_vec(), ["b", "a", "c"]);
    }
}
