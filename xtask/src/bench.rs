//! Builds what is measured and what measures, and runs the benches.

use crate::{packages, root};

/// Takes the arguments after `bench`: `--profile NAME` is for the build, the rest for `fanfare-bench`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let (profile, rest) = split(args)?;
    packages::install_for_benches()?;
    let build = ["build", "--profile", &profile, "--package", "fanfare", "--package", "fanfare-bench"];
    crate::run("cargo", &build)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    // Cargo's own names: the profile `dev` is built into `debug`.
    let directory = if profile == "dev" { "debug" } else { &profile };
    let program = target.join(directory).join("fanfare-bench");
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    crate::run(&program.to_string_lossy(), &rest)
}

/// The profile, `release` unless given, and the other arguments.
fn split(args: &[String]) -> Result<(String, Vec<String>), String> {
    let mut profile = "release".to_owned();
    let mut rest = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match (arg.as_str(), arg.strip_prefix("--profile=")) {
            ("--profile", _) => profile = args.next().ok_or("--profile needs a name")?.clone(),
            (_, Some(name)) => name.clone_into(&mut profile),
            _ => rest.push(arg.clone()),
        }
    }
    Ok((profile, rest))
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn the_profile_is_taken_out() {
        let of = |line: &str| split(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let texts = |rest: &[&str]| rest.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert_eq!(of("warm --quick"), Ok(("release".to_owned(), texts(&["warm", "--quick"]))));
        assert_eq!(
            of("warm --profile dist --seed 2"),
            Ok(("dist".to_owned(), texts(&["warm", "--seed", "2"])))
        );
        assert_eq!(of("--profile=dist"), Ok(("dist".to_owned(), vec![])));
        assert!(of("warm --profile").is_err());
    }
}
