//! The command that was given, to be given again.

/// Flags whose values may be secrets.
const SECRET_FLAGS: [&str; 2] = ["--env", "-e"];

/// The command line of this process as a shell takes it, with the values of variables masked.
pub(crate) fn again() -> String {
    let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    written(arguments)
}

fn written(arguments: impl Iterator<Item = String>) -> String {
    let mut line = "fanfare".to_owned();
    let mut secret = false;
    for argument in arguments {
        let shown = match argument.split_once('=') {
            Some((flag, variable)) if SECRET_FLAGS.contains(&flag) => format!("{flag}={}", masked(variable)),
            _ if secret => masked(&argument),
            _ => match argument
                .strip_prefix("-e")
                .filter(|rest| !rest.is_empty() && !argument.starts_with("--"))
            {
                Some(variable) => format!("-e{}", masked(variable)),
                None => argument.clone(),
            },
        };
        secret = !secret && SECRET_FLAGS.contains(&argument.as_str());
        line.push(' ');
        line.push_str(&quoted(&shown));
    }
    line
}

/// `NAME=VALUE` without the value.
fn masked(variable: &str) -> String {
    match variable.split_once('=') {
        Some((name, _)) => format!("{name}=…"),
        None => variable.to_owned(),
    }
}

fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,…".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_and_secrets_masked() {
        let cases = [
            (&["deploy", "./a b.py", "--memory", "64MiB"][..], "fanfare deploy './a b.py' --memory 64MiB"),
            (&["deploy", "x", "-e", "TOKEN=canary", "--min", "1"], "fanfare deploy x -e TOKEN=… --min 1"),
            (&["deploy", "x", "--env=TOKEN=canary"], "fanfare deploy x --env=TOKEN=…"),
            (&["deploy", "x", "-eTOKEN=canary", "--env", "HOME"], "fanfare deploy x -eTOKEN=… --env HOME"),
            (&["deploy", "x", "--", "it's", ""], r"fanfare deploy x -- 'it'\''s' ''"),
        ];
        for (arguments, line) in cases {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned());
            assert_eq!(written(arguments), line);
        }
    }
}
