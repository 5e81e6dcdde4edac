//! The compiled test programs of the workspace, and their tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::cargo::Cargo;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// The package, which has the name of its directory.
    package: String,
    target: Target,
    executable: PathBuf,
    /// The directory in which cargo runs the tests of this package.
    directory: PathBuf,
}

/// The cargo target of a test program.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    /// The unit tests of a library.
    Library,
    /// The unit tests of a binary.
    Binary(String),
    Integration(String),
}

impl TestProgram {
    /// Compiles all test programs, without the examples, which clippy checks. Compiler messages go
    /// to standard error.
    pub(crate) fn compile_all(features: &str) -> Result<Vec<TestProgram>> {
        let call = Cargo::new("test --workspace --tests --no-run --message-format=json-render-diagnostics")
            .arg(features);
        let mut programs: Vec<TestProgram> = call.output()?.lines().filter_map(parse_artifact).collect();
        // The long tests of `stress` start first, so that none is left when the others have ended.
        programs.sort_by_key(|program| (program.name() != "leasehold::stress", program.name()));
        Ok(programs)
    }

    /// A short name for reports: `leasehold::redis`, or the package alone for its unit tests.
    pub(crate) fn name(&self) -> String {
        match &self.target {
            Target::Library | Target::Binary(_) => self.package.clone(),
            Target::Integration(target) => format!("{}::{target}", self.package),
        }
    }

    pub(crate) fn list(&self) -> Result<Vec<String>> {
        let output = self.command().args(["--list", "--format", "terse"]).output();
        let output = output
            .map_err(|error| format!("`{}` could not be started: {error}.", self.executable.display()))?;
        if !output.status.success() {
            return Err(format!("`{} --list` ended with {}.", self.executable.display(), output.status));
        }
        Ok(parse_list(&String::from_utf8_lossy(&output.stdout)))
    }

    pub(crate) fn run_one(&self, test: &str) -> Command {
        let mut command = self.command();
        command.args(["--exact", test, "--nocapture"]);
        command
    }

    pub(crate) fn command_line(&self, test: &str) -> String {
        let target = match &self.target {
            Target::Library => "--lib".to_owned(),
            Target::Binary(name) => format!("--bin {name}"),
            Target::Integration(name) => format!("--test {name}"),
        };
        format!("cargo test --package {} --all-features {target} -- --exact {test}", self.package)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }
}

/// Parses a test program from a line of cargo's JSON output; `None` for every other line.
fn parse_artifact(line: &str) -> Option<TestProgram> {
    let profile = line.split_once(r#""profile":{"#)?.1.split_once('}')?.0;
    let executable =
        PathBuf::from(string_field(line, "executable").filter(|_| profile.contains(r#""test":true"#))?);
    let directory = Path::new(&string_field(line, "manifest_path")?).parent()?.to_owned();
    let target = &line[line.find(r#""target":{"#)?..];
    let name = string_field(target, "name")?;
    let target = match target.split_once(r#""kind":[""#)?.1.split_once('"')?.0 {
        "test" => Target::Integration(name),
        "bin" => Target::Binary(name),
        _ => Target::Library,
    };
    let package = directory.file_name()?.to_string_lossy().into_owned();
    Some(TestProgram { package, target, executable, directory })
}

/// The first string field of this name. Cargo's names and paths here contain no escapes.
fn string_field(json: &str, name: &str) -> Option<String> {
    let value = json.split_once(&format!("\"{name}\":\""))?.1;
    value.split_once('"').map(|(value, _)| value.to_owned())
}

fn parse_list(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARTIFACT: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/leasehold#0.1.0","manifest_path":"/w/crates/leasehold/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"redis","src_path":"/w/crates/leasehold/tests/redis/main.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"1","debuginfo":"line-tables-only","debug_assertions":true,"overflow_checks":true,"test":true},"features":["file"],"filenames":["/w/target/debug/deps/redis-1"],"executable":"/w/target/debug/deps/redis-1","fresh":true}"#;

    #[test]
    fn a_test_program_is_read_from_the_output_of_cargo() {
        let program = parse_artifact(ARTIFACT).expect("an artifact");
        assert_eq!(program.name(), "leasehold::redis");
        assert_eq!(program.executable, Path::new("/w/target/debug/deps/redis-1"));
        assert_eq!(program.directory, Path::new("/w/crates/leasehold"));
        assert_eq!(
            program.command_line("faults::a_test"),
            "cargo test --package leasehold --all-features --test redis -- --exact faults::a_test"
        );
    }

    #[test]
    fn artifacts_that_are_no_test_programs_are_skipped() {
        let library =
            ARTIFACT.replace(r#""executable":"/w/target/debug/deps/redis-1""#, r#""executable":null"#);
        let binary = ARTIFACT
            .replace(r#""overflow_checks":true,"test":true"#, r#""overflow_checks":true,"test":false"#);
        for line in [library.as_str(), &binary, r#"{"reason":"build-finished","success":true}"#, ""] {
            assert_eq!(parse_artifact(line), None, "{line}");
        }
    }

    #[test]
    fn only_tests_are_listed() {
        assert_eq!(parse_list("a::b: test\nc: benchmark\n\n2 tests, 1 benchmark\nd: test\n"), ["a::b", "d"]);
    }
}
