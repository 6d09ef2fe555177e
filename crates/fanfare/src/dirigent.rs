//! The images that a control plane offers to whoever registers functions as Dirigent's.

use std::path::Path;
use std::sync::Arc;

use fanfare_api::{FunctionDocument, HandlerDocument, ProtocolName};
use fanfare_control_plane::{Image, ImageCode};
use fanfare_types::limits;

use crate::args::DirigentArgs;
use crate::detect::{self, Wanted};
use crate::exit::Failure;
use crate::package::{self, Package};
use crate::program::Program;
use crate::trace_function;

/// The last parts of the names of Dirigent's own images that do what a request asks for …
const TRACE: [&str; 4] = ["trace", "trace_function", "dirigent_trace_function", "dirigent_grpc_function"];
/// … and of those that do nothing.
const EMPTY: [&str; 3] = ["empty", "empty_function", "dirigent_empty_function"];
/// This program's name as a function's code.
const PROGRAM: &str = "fanfare";
/// Images by the command line, beside the built-in ones.
const GIVEN_MAX: usize = limits::IMAGES_MAX - 2;

/// What is offered: the built-in images, and those of the command line, which come first. `None`: no forms are taken.
/// Where nodes are emulated the built-in ones are `fake`.
pub(crate) async fn images(args: &DirigentArgs, emulated: bool) -> Result<Option<Vec<Image>>, Failure> {
    if !args.dirigent {
        return Ok(None);
    }
    if args.images.len() > GIVEN_MAX {
        return Err(Failure::usage(format!("--dirigent-image is given more than {GIVEN_MAX} times")));
    }
    let args = args.clone();
    // Files are read, packed and hashed.
    let made = tokio::task::spawn_blocking(move || made(&args, emulated)).await;
    made.map_err(|e| Failure::platform(format!("cannot make the table of images: {e}")))?.map(Some)
}

fn made(args: &DirigentArgs, emulated: bool) -> Result<Vec<Image>, Failure> {
    let runs_program = |what: &str| !emulated || matches!(what, "trace" | "empty");
    let program = match !emulated || args.images.iter().any(|(_, what)| runs_program(what)) {
        true => Some(code(own_package()?)),
        false => None,
    };
    // HTTP/2, so that gRPC passes; clients of HTTP/1.1 are served all the same.
    let built_in = |empty: bool, names: Vec<String>| match &program {
        Some(code) => Image { names, document: trace(empty, ProtocolName::H2c), code: Some(code.clone()) },
        None => fake(names),
    };
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut images = match emulated {
        true => vec![fake(named(&[&TRACE[..], &EMPTY].concat()))],
        false => vec![built_in(false, named(&TRACE)), built_in(true, named(&EMPTY))],
    };
    for (name, what) in &args.images {
        let names = vec![name.clone()];
        images.push(match what.as_str() {
            "trace" => built_in(false, names),
            "empty" => built_in(true, names),
            "fake" => fake(names),
            path => from_path(Path::new(path), names).map_err(|failure| Failure {
                what: format!("--dirigent-image {name}={path}: {}", failure.what),
                ..failure
            })?,
        });
    }
    Ok(images)
}

/// The built-in function, which speaks both versions of HTTP.
pub(crate) fn trace(empty: bool, protocol: ProtocolName) -> FunctionDocument {
    let mut command = vec![format!("./{PROGRAM}"), trace_function::ARGUMENT.to_owned()];
    command.extend(empty.then(|| trace_function::EMPTY.to_owned()));
    let handler = HandlerDocument::Http { command, inherits_listener: true, protocol };
    FunctionDocument::new("trace", handler)
}

fn fake(names: Vec<String>) -> Image {
    Image { names, document: FunctionDocument::new("fake", HandlerDocument::Fake {}), code: None }
}

fn from_path(path: &Path, names: Vec<String>) -> Result<Image, Failure> {
    // Its own name is not used; one that a directory could not have as a function is no reason to refuse it.
    let document = detect::detect(path, &Wanted { name: Some("image"), ..Wanted::default() })?;
    let code = match document.handler {
        HandlerDocument::Fake {} => None,
        _ => Some(code(package::pack(path)?)),
    };
    Ok(Image { names, document, code })
}

/// This program, as it runs: also where its file has been replaced or removed meanwhile.
pub(crate) fn own_package() -> Result<Package, Failure> {
    let path = Path::new("/proc/self/exe");
    let unreadable = |e| Failure::platform(format!("cannot read this program: {e}"));
    let program = Program::open(path).map_err(unreadable)?;
    let size = program.size_bytes();
    package::pack_program(path, Path::new(PROGRAM), size, program.read().map_err(unreadable)?)
}

fn code(package: Package) -> ImageCode {
    ImageCode { digest: package.digest, archive: Arc::new(package.archive) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(images: &[(&str, &str)], emulated: bool) -> Vec<(Vec<String>, String, bool)> {
        let images = images.iter().map(|(name, what)| ((*name).to_owned(), (*what).to_owned())).collect();
        let made = made(&DirigentArgs { dirigent: true, images }, emulated).unwrap();
        let shown = |image: Image| {
            let kind = match &image.document.handler {
                HandlerDocument::Http { command, .. } => command.join(" "),
                other => other.kind().to_owned(),
            };
            (image.names, kind, image.code.is_some())
        };
        made.into_iter().map(shown).collect()
    }

    #[test]
    fn built_in_images_are_this_program_and_others_what_they_are_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("main.py"), "def handler(event, context): pass\n").unwrap();
        let path = dir.path().to_str().unwrap();
        let found =
            of(&[("own", path), ("their/trace:1", "trace"), ("none", "empty"), ("quick", "fake")], false);
        let names: Vec<_> = found.iter().map(|(names, ..)| names.join(" ")).collect();
        assert_eq!(names[2..], ["own", "their/trace:1", "none", "quick"]);
        let kinds: Vec<_> = found.iter().map(|(_, kind, code)| (kind.as_str(), *code)).collect();
        let (trace, empty) = ("./fanfare __trace-function", "./fanfare __trace-function empty");
        let expected =
            [(trace, true), (empty, true), ("python", true), (trace, true), (empty, true), ("fake", false)];
        assert_eq!(kinds, expected);
        assert!(names[0].contains("dirigent_trace_function") && names[1].contains("dirigent_empty_function"));

        let emulated = of(&[], true);
        assert_eq!((emulated.len(), emulated[0].1.as_str(), emulated[0].2), (1, "fake", false));
        assert_eq!(of(&[("real", "trace")], true)[1].1, trace);
    }

    #[test]
    fn a_path_that_holds_no_function_is_refused() {
        let args = DirigentArgs { dirigent: true, images: vec![("a".into(), "/nowhere/at/all".into())] };
        assert!(made(&args, true).unwrap_err().to_string().contains("/nowhere/at/all"));
    }
}
