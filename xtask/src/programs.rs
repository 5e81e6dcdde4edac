//! The programs the tests need, and how they get onto a machine that lacks them.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

pub(crate) struct Program {
    /// As it is found on PATH.
    pub(crate) name: &'static str,
    /// The Debian packages it comes in.
    pub(crate) packages: &'static [&'static str],
    /// What for, to be read after "needed".
    pub(crate) why: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "cc",
        packages: &["gcc", "libc6-dev"],
        why: "to link, and to compile what is written in C",
    },
    Program { name: "unshare", packages: &["util-linux"], why: "to run tests in namespaces of their own" },
    Program { name: "setsid", packages: &["util-linux"], why: "to run tests at a terminal of their own" },
    Program { name: "bash", packages: &["bash"], why: "for tests of what a shell does with its jobs" },
    Program { name: "mount", packages: &["mount"], why: "for tests of disks that are full or fail" },
    Program { name: "mkfs.ext4", packages: &["e2fsprogs"], why: "for tests of disks that are full or fail" },
    Program {
        name: "setpriv",
        packages: &["util-linux"],
        why: "to end servers with the test that started them",
    },
    Program { name: "openssl", packages: &["openssl"], why: "as a client of TLS that is not ours" },
    Program { name: "redis-server", packages: &["redis-server"], why: "for tests on a real Redis" },
    Program {
        name: "pg_ctlcluster",
        packages: &["postgresql"],
        why: "for tests of fences on a real PostgreSQL",
    },
    Program { name: "node", packages: &["nodejs"], why: "for tests beside other libraries" },
    Program { name: "npm", packages: &["npm"], why: "for tests beside other libraries" },
];

/// Those of the packages that bring a service of the same name.
const SERVICES: &[&str] = &["redis-server", "postgresql"];

/// Asked by Debian's packages whether a service may be started.
const POLICY: &str = "/usr/sbin/policy-rc.d";

const NO_SERVICES: &str = "\
#!/bin/sh
# Written by Leasehold's `cargo xtask` while it installs programs, so that none is started as a service.
exit 101
";

/// Installs what is missing; says what there is.
pub(crate) fn ensure() -> Result<String> {
    let missing: Vec<&Program> = PROGRAMS.iter().filter(|program| !is_on_path(program.name)).collect();
    if missing.is_empty() {
        return Ok(format!("{}: found", names(PROGRAMS.iter())));
    }
    install(&missing)?;
    match missing.iter().find(|program| !is_on_path(program.name)) {
        None => Ok(format!("{}: installed", names(missing.iter().copied()))),
        Some(program) => Err(format!(
            "`{}` is still not on PATH, although `{}` was installed.",
            program.name,
            program.packages.join(" ")
        )),
    }
}

/// Says what is missing, and installs it.
pub(crate) fn install(missing: &[&Program]) -> Result<()> {
    for program in missing {
        println!("`{}` is missing; it is needed {}.", program.name, program.why);
    }
    let packages: Vec<&str> = missing.iter().flat_map(|program| program.packages).copied().collect();
    let by_hand = |why: &str| {
        Err(format!(
            "Missing: {}. {why}; install them yourself (on Debian: `apt-get install {}`) and try again.",
            names(missing.iter().copied()),
            packages.join(" ")
        ))
    };
    if !is_on_path("apt-get") {
        return by_hand("There is no apt-get here to install them with");
    }
    if !is_root() {
        return by_hand("Only root may install them");
    }
    let _no_services = NoServices::at(Path::new(POLICY));
    for args in [&["update"][..], &["install", "-y", "--no-install-recommends"]] {
        let mut command = Command::new("apt-get");
        command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
        if args[0] == "install" {
            command.args(&packages);
        }
        println!("\n==> apt-get {}", args.join(" "));
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => return by_hand(&format!("`apt-get {}` ended with {status}", args[0])),
            Err(error) => return by_hand(&format!("apt-get could not be started ({error})")),
        }
    }
    keep_down(&packages);
    Ok(())
}

/// What was not started now would be at the next boot.
fn keep_down(installed: &[&str]) {
    let services = SERVICES.iter().filter(|service| installed.contains(service));
    if is_on_path("systemctl") {
        for service in services {
            // It fails where systemd does not run, and there nothing is started either.
            let _ = Command::new("systemctl").args(["--quiet", "disable", service]).output();
        }
    }
}

/// While it lives, what is installed is not started: the tests start servers of their own, and a service would stay
/// behind on the machine and keep its port.
struct NoServices(Option<PathBuf>);

impl NoServices {
    /// A policy that somebody else wrote is left as it is. One of ours, left behind by a call that was killed, goes with
    /// this one.
    fn at(policy: &Path) -> Self {
        let foreign = fs::read(policy).is_ok_and(|text| text != NO_SERVICES.as_bytes());
        if foreign {
            return NoServices(None);
        }
        let written = fs::write(policy, NO_SERVICES)
            .and_then(|()| fs::set_permissions(policy, fs::Permissions::from_mode(0o755)));
        if let Err(error) = &written {
            println!("{} could not be written ({error}); services may be started.", policy.display());
        }
        NoServices(Some(policy.to_owned()))
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Some(policy) = &self.0 {
            // Nothing hangs on it: it is ours, and the next call knows it.
            let _ = fs::remove_file(policy);
        }
    }
}

fn names<'a>(programs: impl Iterator<Item = &'a Program>) -> String {
    programs.map(|program| program.name).collect::<Vec<_>>().join(", ")
}

pub(crate) fn is_on_path(name: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str) -> PathBuf {
        env::temp_dir().join(format!("leasehold-xtask-{name}-{}", std::process::id()))
    }

    #[test]
    fn services_are_kept_down_for_as_long_as_programs_are_installed() {
        let policy = policy("policy");
        for _ in 0..2 {
            let kept_down = NoServices::at(&policy);
            assert_eq!(
                Command::new("sh").arg(&policy).status().map(|status| status.code()).ok(),
                Some(Some(101))
            );
            drop(kept_down);
            assert!(!policy.exists());
            // As a call that was killed leaves it; the second round takes it away.
            assert!(fs::write(&policy, NO_SERVICES).is_ok());
        }
        assert!(fs::remove_file(&policy).is_ok());
    }

    #[test]
    fn the_policy_of_somebody_else_is_left_alone() {
        let policy = policy("foreign");
        assert!(fs::write(&policy, "#!/bin/sh\nexit 0\n").is_ok());
        drop(NoServices::at(&policy));
        assert!(fs::read(&policy).is_ok_and(|text| text == b"#!/bin/sh\nexit 0\n"));
        assert!(fs::remove_file(&policy).is_ok());
    }
}
