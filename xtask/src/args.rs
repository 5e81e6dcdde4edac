//! The command line of `xtask`.

use crate::Result;
use crate::steps::Step;

pub(crate) const USAGE: &str = "\
Usage: cargo xtask COMMAND

  test [--only STEP]   everything a change has to pass; long proofs at a tenth
                       STEP: fmt, features, clippy, doc, package or test
  soak [FILTER]        the tests whose names contain FILTER, at full length, with their figures
  bench [FILTER]       the benchmarks, as markdown
  deny                 licences, bans, sources and advisories of the dependencies

`test` and `soak` install the programs that the tests need, where they are missing (Debian, as root).";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Help,
    Test { only: Option<Step> },
    Soak { filter: Option<String> },
    Bench { filter: Option<String> },
    Deny,
}

pub(crate) fn parse(args: &[String]) -> Result<Asked> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some((command, rest)) = args.split_first() else {
        return Ok(Asked::Help);
    };
    if args.iter().any(|arg| matches!(*arg, "--help" | "-h")) {
        return Ok(Asked::Help);
    }
    match *command {
        "help" => Ok(Asked::Help),
        "test" => Ok(Asked::Test { only: only(rest)? }),
        "soak" => Ok(Asked::Soak { filter: filter(rest)? }),
        "bench" => Ok(Asked::Bench { filter: filter(rest)? }),
        "deny" if rest.is_empty() => Ok(Asked::Deny),
        "deny" => Err("`deny` takes no arguments.".to_owned()),
        other => Err(format!("There is no command `{other}`.")),
    }
}

fn only(args: &[&str]) -> Result<Option<Step>> {
    let name = match args {
        [] => return Ok(None),
        ["--only", name] => name,
        ["--only"] => return Err("`--only` needs the name of a step.".to_owned()),
        [arg] if arg.starts_with("--only=") => &arg["--only=".len()..],
        _ => return Err(format!("`test` does not understand `{}`.", args.join(" "))),
    };
    match Step::ALL.into_iter().find(|step| step.name() == name) {
        Some(step) => Ok(Some(step)),
        None => Err(format!("`test` has no step `{name}`.")),
    }
}

fn filter(args: &[&str]) -> Result<Option<String>> {
    match args {
        [] => Ok(None),
        [option, ..] if option.starts_with('-') => Err(format!("There is no option `{option}`.")),
        [filter] => Ok(Some((*filter).to_owned())),
        [_, extra, ..] => Err(format!("One filter is enough; `{extra}` is too many.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Asked> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn nothing_and_help_show_the_usage() {
        for line in ["", "--help", "-h", "help", "test --help", "soak -h"] {
            assert_eq!(parsed(line), Ok(Asked::Help), "{line}");
        }
    }

    #[test]
    fn every_command_is_understood() {
        assert_eq!(parsed("test"), Ok(Asked::Test { only: None }));
        assert_eq!(parsed("soak"), Ok(Asked::Soak { filter: None }));
        assert_eq!(parsed("soak keeper"), Ok(Asked::Soak { filter: Some("keeper".to_owned()) }));
        assert_eq!(parsed("bench mutex"), Ok(Asked::Bench { filter: Some("mutex".to_owned()) }));
        assert_eq!(parsed("deny"), Ok(Asked::Deny));
    }

    #[test]
    fn every_step_can_be_run_alone() {
        for step in Step::ALL {
            assert_eq!(parsed(&format!("test --only {}", step.name())), Ok(Asked::Test { only: Some(step) }));
            assert_eq!(parsed(&format!("test --only={}", step.name())), Ok(Asked::Test { only: Some(step) }));
            assert!(USAGE.contains(step.name()), "the usage does not name {}", step.name());
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in
            ["frobnicate", "test keeper", "test --only", "test --only x", "soak -x", "bench a b", "deny x"]
        {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
