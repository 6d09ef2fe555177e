//! What a path holds: which kind of handler, under which name, with which settings.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fanfare_api::{FieldError, FunctionDocument, HandlerDocument};
use fanfare_types::{FunctionName, FunctionSpec};

use crate::exit::Failure;
use crate::given;
use crate::package::SETTINGS_FILE;
use crate::settings_file::SettingsFile;
use crate::suggest;

/// Files that are taken as the handler of a directory, best first.
const HANDLER_FILES: [&str; 14] = [
    "handler.py",
    "main.py",
    "app.py",
    "function.py",
    "index.py",
    "handler.js",
    "index.js",
    "main.js",
    "app.js",
    "handler.mjs",
    "index.mjs",
    "main.mjs",
    "handler.cjs",
    "index.cjs",
];
/// Bytes of a code's digest, which is not known before it is packed.
const SHA_256_BYTES: usize = 32;

/// What the command line says about the code, beyond its path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// The function's name.
    pub(crate) name: Option<&'a str>,
    /// `FILE`, `FILE:HANDLER`, or `:HANDLER`.
    pub(crate) handler: Option<&'a str>,
    /// Arguments of a program.
    pub(crate) arguments: &'a [String],
}

/// The function that `path` holds, without its code's digest.
///
/// # Errors
/// What is ambiguous or missing, with what to do about it.
pub(crate) fn detect(path: &Path, wanted: &Wanted<'_>) -> Result<FunctionDocument, Failure> {
    let metadata = fs::metadata(path).map_err(|e| {
        Failure::usage(format!("cannot read {}: {e}", path.display())).next("give a file or a directory")
    })?;
    let mut document = if metadata.is_dir() {
        directory(path, wanted)?
    } else {
        let handler = file(path, wanted)?;
        FunctionDocument::new(&name_of(path, wanted)?, handler)
    };
    if !wanted.arguments.is_empty() {
        match &mut document.handler {
            HandlerDocument::Http { command, .. } => command.extend_from_slice(wanted.arguments),
            other => {
                let what =
                    format!("arguments after `--` are for programs, not for a {} handler", other.kind());
                return Err(Failure::usage(what));
            }
        }
    }
    Ok(document)
}

fn file(path: &Path, wanted: &Wanted<'_>) -> Result<HandlerDocument, Failure> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::usage(format!("{} has no readable file name", path.display())))?;
    let (named, handler) = split_handler(wanted.handler);
    if named.is_some_and(|named| named != name) {
        let what = format!("--handler names another file than {}", path.display());
        return Err(Failure::usage(what)
            .next("give the directory as the path, or leave the file out: --handler :NAME"));
    }
    if let Some(found) = by_extension(name, handler) {
        return Ok(found);
    }
    let metadata =
        fs::metadata(path).map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())))?;
    let executable = metadata.permissions().mode() & 0o111 != 0;
    match (executable, has_program_magic(path)) {
        (true, true) => Ok(HandlerDocument::Http {
            command: vec![name.to_owned()],
            inherits_listener: false,
            protocol: Default::default(),
        }),
        (false, true) => Err(Failure::usage(format!("{} is a program but not executable", path.display()))
            .next(format!("chmod +x {}", path.display()))),
        _ => Err(Failure::usage(format!("{} is no handler that is known", path.display()))
            .next("give a .py, .js, .mjs or .cjs file, a program that serves HTTP on $PORT, or a directory")),
    }
}

fn by_extension(file: &str, handler: Option<&str>) -> Option<HandlerDocument> {
    let (_, extension) = file.rsplit_once('.')?;
    let (file, handler) = (file.to_owned(), handler.unwrap_or("handler").to_owned());
    match extension {
        "py" => Some(HandlerDocument::Python { file, handler }),
        "js" | "mjs" | "cjs" => Some(HandlerDocument::Node { file, handler }),
        _ => None,
    }
}

/// An ELF binary, or a script that names its interpreter.
fn has_program_magic(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = fs::File::open(path).and_then(|mut file| file.read(&mut magic));
    matches!(read, Ok(n) if n >= 2) && (magic == *b"\x7fELF" || magic.starts_with(b"#!"))
}

fn directory(path: &Path, wanted: &Wanted<'_>) -> Result<FunctionDocument, Failure> {
    let settings = path.join(SETTINGS_FILE);
    let file = SettingsFile::read(&settings)?;
    let mut table = file.as_ref().map_or_else(|| Ok(toml::Table::new()), SettingsFile::table)?;
    given::read_files(&mut table, path)?;
    if let Some(name) = wanted.name {
        table.insert("name".to_owned(), name.to_owned().into());
    } else if !table.contains_key("name") {
        table.insert("name".to_owned(), name_of(path, wanted)?.into());
    }
    if wanted.handler.is_some() || !table.contains_key("handler") {
        let handler = directory_handler(path, wanted)?;
        let value = toml::Value::try_from(handler)
            .map_err(|e| Failure::platform(format!("cannot write the handler's settings: {e}")))?;
        table.insert("handler".to_owned(), value);
    }
    let json =
        serde_json::to_vec(&table).map_err(|e| Failure::usage(format!("{}: {e}", settings.display())))?;
    let told = |failure: Failure| match &file {
        Some(file) => file.wrong(failure),
        None => failure,
    };
    let document = FunctionDocument::from_json(&json).map_err(|e| told(e.into()))?;
    // What is wrong in the file is told of the file, before anything is packed or sent.
    check(&document).map_err(|e| told(e.into()))?;
    Ok(document)
}

/// Checks all that can be wrong in a document whose code is not packed yet.
///
/// # Errors
/// The first field that is wrong.
pub(crate) fn check(document: &FunctionDocument) -> Result<(), FieldError> {
    let code = Some("0".repeat(2 * SHA_256_BYTES));
    let code = code.filter(|_| document.handler != HandlerDocument::Fake {});
    FunctionSpec::try_from(FunctionDocument { code, ..document.clone() }).map(drop)
}

fn directory_handler(path: &Path, wanted: &Wanted<'_>) -> Result<HandlerDocument, Failure> {
    let (named, handler) = split_handler(wanted.handler);
    if let Some(file) = named {
        if !path.join(file).is_file() {
            let failure = Failure::usage(format!("{} is not in {}", file, path.display()));
            let sources = sources(path)?;
            return Err(match suggest::closest(file, sources.iter().map(String::as_str)) {
                Some(meant) => failure.next(format!("did you mean --handler {meant}?")),
                None if sources.is_empty() => failure
                    .next("--handler names a .py, .js, .mjs or .cjs file in the directory; it has none"),
                None => failure.next(format!("--handler names a file in it, such as {}", sources.join(", "))),
            });
        }
        return by_extension(file, handler).ok_or_else(|| {
            Failure::usage(format!("{file} is no handler that is known"))
                .next("give a .py, .js, .mjs or .cjs file; a program is given in fanfare.toml: `handler = { kind = \"http\", command = [\"./server\"] }`")
        });
    }
    let known: Vec<&str> = HANDLER_FILES.into_iter().filter(|file| path.join(file).is_file()).collect();
    let found = match known.as_slice() {
        [file] => (*file).to_owned(),
        [] => only_source(path)?,
        many => {
            let what = format!(
                "{} holds several files that a handler may be in: {}",
                path.display(),
                many.join(", ")
            );
            return Err(
                Failure::usage(what).next(format!("name one with --handler, such as --handler {}", many[0]))
            );
        }
    };
    by_extension(&found, handler)
        .ok_or_else(|| Failure::usage(format!("{found} is no handler that is known")))
}

/// Source files in a directory.
fn sources(path: &Path) -> Result<Vec<String>, Failure> {
    let unreadable = |e| Failure::usage(format!("cannot read {}: {e}", path.display()));
    let mut sources = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned();
        if by_extension(&name, None).is_some() && path.join(&name).is_file() {
            sources.push(name);
        }
    }
    sources.sort();
    Ok(sources)
}

/// The one source file of a directory without a file of a usual name.
fn only_source(path: &Path) -> Result<String, Failure> {
    let sources = sources(path)?;
    match sources.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Failure::usage(format!("{} holds no handler", path.display())).next(
            "add handler.py or handler.js, name one with --handler FILE, or write fanfare.toml with \
             `handler = { kind = \"http\", command = [\"./server\"] }`",
        )),
        many => Err(Failure::usage(format!("{} holds several sources: {}", path.display(), many.join(", ")))
            .next("name the handler's file with --handler FILE")),
    }
}

fn split_handler(handler: Option<&str>) -> (Option<&str>, Option<&str>) {
    let present = |s: &'_ str| !s.is_empty();
    match handler {
        None => (None, None),
        Some(text) => match text.rsplit_once(':') {
            Some((file, handler)) => {
                (Some(file).filter(|s| present(s)), Some(handler).filter(|s| present(s)))
            }
            None => (Some(text).filter(|s| present(s)), None),
        },
    }
}

/// The name asked for, or the file's or directory's own in lower case, its spaces as hyphens, without dots and the like at
/// its ends. Nothing else is made fit: two hyphens in a row would look like a tag's host, and letters that are left out
/// like another name.
fn name_of(path: &Path, wanted: &Wanted<'_>) -> Result<String, Failure> {
    if let Some(name) = wanted.name {
        return Ok(name.to_owned());
    }
    let full =
        path.canonicalize().map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())))?;
    // The path as given names the function even when it is a link.
    let given = if path.file_name().is_some() { path } else { &full };
    let stem = if full.is_dir() { given.file_name() } else { given.file_stem() };
    let stem = stem.map(|stem| stem.to_string_lossy().to_lowercase()).unwrap_or_default();
    let name = stem.split_whitespace().collect::<Vec<_>>().join("-");
    let name = name.trim_matches(['.', '_', '-']);
    match FunctionName::new(name) {
        Ok(_) if !name.contains("--") => Ok(name.to_owned()),
        Ok(_) => {
            Err(Failure::usage(format!("the function would be called {name}, which looks like a tag's host"))
                .next("name it with --name"))
        }
        Err(why) => {
            Err(Failure::usage(format!("{} gives no name for the function: it {why}", path.display()))
                .next("name it with --name"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::path::PathBuf;

    use super::*;

    fn dir(name: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(name);
        fs::create_dir(&path).unwrap();
        for (file, text) in files {
            fs::create_dir_all(path.join(file).parent().unwrap()).unwrap();
            fs::write(path.join(file), text).unwrap();
        }
        (temp, path)
    }

    fn python(file: &str, handler: &str) -> HandlerDocument {
        HandlerDocument::Python { file: file.into(), handler: handler.into() }
    }

    fn node(file: &str) -> HandlerDocument {
        HandlerDocument::Node { file: file.into(), handler: "handler".into() }
    }

    #[test]
    fn files() {
        let (_temp, path) = dir(
            "x",
            &[
                ("Hello World.py", ""),
                ("a.mjs", ""),
                ("b.cjs", ""),
                ("srv", "#!/bin/sh\n"),
                ("notes.txt", ""),
            ],
        );
        let detect = |name: &str| detect(&path.join(name), &Wanted::default());
        let hello = detect("Hello World.py").unwrap();
        assert_eq!(
            (hello.name.as_str(), hello.handler),
            ("hello-world", python("Hello World.py", "handler"))
        );
        assert_eq!(detect("a.mjs").unwrap().handler, node("a.mjs"));
        assert_eq!(detect("b.cjs").unwrap().handler, node("b.cjs"));
        assert!(detect("srv").unwrap_err().next.unwrap().starts_with("chmod +x"));
        fs::set_permissions(path.join("srv"), Permissions::from_mode(0o755)).unwrap();
        let program = HandlerDocument::Http {
            command: vec!["srv".into()],
            inherits_listener: false,
            protocol: Default::default(),
        };
        assert_eq!(detect("srv").unwrap().handler, program);
        for strange in ["Größe.py", "öl.py", "a--b.py", "-.py", "a b -c.py"] {
            fs::write(path.join(strange), "").unwrap();
            let refused = detect(strange).unwrap_err();
            assert_eq!(refused.next.as_deref(), Some("name it with --name"), "{strange}: {refused}");
        }
        assert!(detect("notes.txt").unwrap_err().what.contains("no handler"));
        assert!(detect("missing.py").unwrap_err().what.contains("missing.py"));
    }

    #[test]
    fn directories() {
        let wanted = Wanted::default();
        let (_a, path) = dir("My_App", &[("handler.py", ""), ("util.py", ""), ("requirements.txt", "x")]);
        let document = detect(&path, &wanted).unwrap();
        assert_eq!((document.name.as_str(), document.handler), ("my_app", python("handler.py", "handler")));
        let (_b, path) = dir("one", &[("work.js", ""), ("data.json", "")]);
        assert_eq!(detect(&path, &wanted).unwrap().handler, node("work.js"));
        let (_c, path) = dir("two", &[("a.py", ""), ("b.py", "")]);
        assert!(detect(&path, &wanted).unwrap_err().what.contains("a.py, b.py"));
        let (_e, path_of_both) = dir("both", &[("main.py", ""), ("index.js", ""), ("util.py", "")]);
        let both = detect(&path_of_both, &wanted).unwrap_err();
        assert!(both.what.contains("main.py, index.js") && both.next.unwrap().contains("--handler main.py"));
        let chosen = Wanted { handler: Some("index.js"), ..Wanted::default() };
        assert_eq!(detect(&path_of_both, &chosen).unwrap().handler, node("index.js"));
        let chosen = Wanted { handler: Some("b.py:run"), ..Wanted::default() };
        assert_eq!(detect(&path, &chosen).unwrap().handler, python("b.py", "run"));
        let (_d, path) = dir("none", &[]);
        assert!(detect(&path, &wanted).unwrap_err().what.contains("holds no handler"));
    }

    #[test]
    fn settings_in_a_file() {
        let toml = "name = \"api\"\nconcurrency = 4\nhandler = { kind = \"http\", command = [\"./srv\"] }\n\
                    [env]\nMODE = \"fast\"\n[scaling]\nmax = 7\n[timeouts]\nrequest = \"5s\"\n";
        let (_a, path) = dir("x", &[("fanfare.toml", toml)]);
        let arguments = ["--port".to_owned()];
        let document = detect(&path, &Wanted { arguments: &arguments, ..Wanted::default() }).unwrap();
        assert_eq!(
            (document.name.as_str(), document.concurrency, document.scaling.max),
            ("api", Some(4), Some(7))
        );
        let command = vec!["./srv".to_owned(), "--port".to_owned()];
        assert_eq!(
            document.handler,
            HandlerDocument::Http { command, inherits_listener: false, protocol: Default::default() }
        );
        let renamed = detect(&path, &Wanted { name: Some("other"), ..Wanted::default() }).unwrap();
        assert_eq!(renamed.name, "other");
    }

    #[test]
    fn wrong_settings_name_the_file_and_the_field() {
        let cases = [
            ("concurency = 4", "concurency"),
            ("concurrency = \"many\"", "concurrency"),
            ("code = \"aa\"", "code"),
            ("name = ", "line 1"),
            ("\n[scaling]\nmax = 0", "fanfare.toml:3: scaling.max is 0; allowed: 1 to"),
            (
                "[scaling]\npolicy = \"kap\"",
                "fanfare.toml:2: scaling.policy is \"kap\"; allowed: kpa, hpa, fixed",
            ),
            ("name = \"Foo Bar\"", "fanfare.toml:1: name \"Foo Bar\" holds 'F'; give 1 to 63 characters of"),
            ("[env]\nA = 1", "fanfare.toml:2: env.A is a number; allowed: text, in quotes"),
            ("[handler]\nkind = \"pyhton\"", "fanfare.toml:2: handler.kind is \"pyhton\"; allowed: python,"),
            (
                "[handler]\nkind = \"http\"",
                "fanfare.toml:1: handler.command is missing; give a list of texts",
            ),
            (
                "[handler]\nkind = \"python\"\nfile = \"a.py\"\ncommand = [\"x\"]",
                "fanfare.toml:4: handler.command is given; allowed: only with kind http",
            ),
            (
                "[timeouts]\nidle = \"-1s\"",
                "fanfare.toml:2: timeouts.idle is \"-1s\"; allowed: 0 for none, or 1 ms",
            ),
        ];
        let meant = ["kap", "pyhton"];
        for (toml, named) in cases {
            let (_a, path) = dir("x", &[("fanfare.toml", toml), ("handler.py", "")]);
            let failure = detect(&path, &Wanted::default()).unwrap_err();
            assert!(
                failure.what.contains("fanfare.toml") && failure.what.contains(named),
                "{toml}: {failure}"
            );
            let hint = failure.next.unwrap_or_default();
            assert!(!hint.is_empty() || !named.contains("TOML parse error"), "{toml}");
            let expected = meant.iter().any(|wrong| toml.contains(wrong));
            assert_eq!(
                hint.starts_with("did you mean"),
                expected || toml.contains("concurency"),
                "{toml}: {hint}"
            );
        }
    }
}
