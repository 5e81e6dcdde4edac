//! Passwords: where they come from, and that they go nowhere else.

use std::os::unix::fs::PermissionsExt;

use crate::common::{Home, said};
use assert_cmd::Command;
use leasehold_lab::{Kind, Server, Setup};

const CANARY: &str = "c4nary-In-The-Mine";

fn guarded() -> Server {
    let rules = format!("on >{CANARY} ~* &* +@all");
    Setup::new(Kind::Redis).line("appendonly yes").password(CANARY).user("alice", &rules).start().unwrap()
}

/// A home with the password in a file that is closed to others.
fn home() -> Home {
    let home = Home::new();
    home.write("password", &format!("{CANARY}\nand what nobody reads\n"));
    close(&home, "password", 0o600);
    home
}

fn close(home: &Home, file: &str, mode: u32) {
    std::fs::set_permissions(home.path().join(file), std::fs::Permissions::from_mode(mode)).unwrap();
}

/// What it is called, arguments, variables.
type Way = (&'static str, Vec<&'static str>, Vec<(&'static str, String)>);

/// Every way to give it, for either user.
fn ways(server: &Server) -> Vec<Way> {
    ["", "alice"]
        .into_iter()
        .flat_map(|user| {
            let at = if user.is_empty() { String::new() } else { format!("{user}@") };
            let bare = format!("redis://{at}{}/", server.addr());
            let full = format!("redis://{user}:{CANARY}@{}/", server.addr());
            [
                ("in the URL", vec![], vec![("LEASEHOLD_STORE", full)]),
                (
                    "in a variable",
                    vec![],
                    vec![("LEASEHOLD_STORE", bare.clone()), ("LEASEHOLD_PASSWORD", CANARY.to_owned())],
                ),
                ("in a file", vec!["--password-file", "password"], vec![("LEASEHOLD_STORE", bare)]),
            ]
        })
        .collect()
}

#[test]
fn a_password_reaches_the_store_and_nobody_else() {
    let (server, home) = (guarded(), home());
    home.script(
        "look",
        "env; tr '\\0' ' ' < /proc/$$/environ; tr '\\0' ' ' < /proc/$$/cmdline; tr '\\0' ' ' < /proc/$PPID/cmdline; echo; echo seen",
    );
    for (way, args, variables) in ways(&server) {
        let run = |more: &[&str]| {
            let mut command: Command = home.leasehold();
            command.args(&args).args(more).envs(variables.iter().map(|(key, value)| (*key, value)));
            said(&mut command)
        };
        for more in [
            &["-vvv", "run", "x", "--", "./look"][..],
            &["-vvv", "ls"],
            &["doctor"],
            &["doctor", "--output", "json"],
            &["lock", "y", "--ttl", "1h"],
            &["evict", "y", "--yes"],
        ] {
            let (code, out, told) = run(more);
            assert_eq!(code, 0, "{way}: {more:?}: {out}{told}");
            assert!(!out.contains(CANARY) && !told.contains(CANARY), "{way}: {more:?}: {out}{told}");
            assert!(more[0] != "-vvv" || more[1] != "run" || out.contains("seen"), "{out}");
        }
    }
}

#[test]
fn what_is_told_of_a_loss_does_not_get_it_either() {
    let (server, home) = (guarded(), home());
    let hook = home.script("hook", "env > told; echo done >> told");
    for (way, args, variables) in ways(&server) {
        let _ = std::fs::remove_file(home.path().join("told"));
        let mut running = home.start_with([], |command| {
            command.args(&args).args(["run", "--ttl", "2s", "--on-lost-exec", &hook, "x", "--", "sh", "-c"]);
            command
                .arg("echo ready; exec sleep 1000")
                .envs(variables.iter().map(|(key, value)| (*key, value)));
        });
        assert_eq!(running.line(), "ready");
        assert_eq!(server.command(&["DEL", "lock:x"]).unwrap().int(), Some(1));
        assert_eq!(running.end().0, 79, "{way}");
        let told = home.read("told");
        assert!(told.contains("LEASEHOLD_LOSS=deleted") && told.contains("done"), "{way}: {told}");
        assert!(!told.contains(CANARY), "{way}: {told}");
    }
}

#[test]
fn the_file_comes_before_the_variable_and_the_url_beside_neither() {
    let (server, home) = (guarded(), home());
    let run = |args: &[&str], store: &str, password: &str| {
        said(
            home.leasehold()
                .arg("ls")
                .args(args)
                .env("LEASEHOLD_STORE", store)
                .env("LEASEHOLD_PASSWORD", password),
        )
    };
    let (bare, full) = (server.url(), format!("redis://:{CANARY}@{}/", server.addr()));
    let file = ["--password-file", "password"];
    assert_eq!(run(&file, &bare, "wrong").0, 0);
    assert_eq!(run(&[], &full, "").0, 0, "empty is not set");
    for (args, password) in [(&file[..], ""), (&[], CANARY)] {
        let (code, _, told) = run(args, &full, password);
        assert!(code == 78 && told.contains("the URL has one too; give it in one place"), "{told}");
        assert!(!told.contains(CANARY), "{told}");
    }
    let (code, _, told) = run(&[], &bare, "wrong");
    assert!(code == 69 && told.contains("check user and password"), "{told}");
    assert_eq!(run(&[], "file:", CANARY).0, 0, "a store without one does not mind");
}

#[test]
fn a_file_without_a_password_is_refused_and_one_that_others_can_read_is_warned_about() {
    let (server, home) = (guarded(), home());
    let run = |file: &str| {
        said(home.leasehold().args(["ls", "--password-file", file]).env("LEASEHOLD_STORE", server.url()))
    };
    for (text, why) in
        [("", "has no password"), ("\nsecond\n", "has no password"), ("\u{0}", "check user and password")]
    {
        home.write("other", text);
        close(&home, "other", 0o600);
        let (code, _, told) = run("other");
        assert!(code == 64 || code == 69, "{told}");
        assert!(told.contains(why), "{told}");
    }
    let (code, _, told) = run("nowhere");
    assert!(code == 64 && told.contains("could not be read from `nowhere`: No such file"), "{told}");
    close(&home, "password", 0o644);
    let (code, _, told) = run("password");
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("`password` is open to other users (mode 644); `chmod 600` it"), "{told}");
    home.write("password", &format!("{CANARY}\r\n"));
    assert_eq!(run("password").0, 0, "as other systems end their lines");
}

#[test]
fn a_password_that_others_can_read_on_its_way_is_warned_about_once() {
    let (server, home) = (guarded(), home());
    // An address that leads nowhere: the warning comes before anything is sent.
    let (code, _, told) = home.run("ls --password-file password --store redis://192.0.2.1/?timeout=50");
    assert_eq!((code, told.matches("in plain text").count()), (69, 1), "{told}");
    assert_eq!(
        home.run("-q ls --password-file password --store redis://192.0.2.1/?timeout=50").2.lines().count(),
        1
    );
    let (code, _, told) = home.run(&format!("ls --store redis://:{CANARY}@{}/", server.addr()));
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("every user of this machine can read") && !told.contains(CANARY), "{told}");
}

#[test]
fn a_nested_leasehold_uses_the_same_store_or_fails_and_never_another() {
    let (server, home) = (guarded(), home());
    let binary = assert_cmd::cargo::cargo_bin("leasehold");
    let nested = format!("{} run inner -- {} ls --output json", binary.display(), binary.display());
    let run = |store: &str, variables: &[(&str, String)]| {
        let mut command = home.leasehold();
        command.args(["run", "outer", "-c", &nested]).env("LEASEHOLD_STORE", store);
        said(command.envs(variables.iter().map(|(key, value)| (*key, value))))
    };
    for (store, variables) in [
        (format!("redis://:{CANARY}@{}/", server.addr()), vec![]),
        (format!("redis://alice:{CANARY}@{}/", server.addr()), vec![]),
        (server.url(), vec![("LEASEHOLD_PASSWORD", CANARY.to_owned())]),
    ] {
        let (code, out, told) = run(&store, &variables);
        assert_eq!((code, out.as_str()), (69, ""), "{told}");
        assert!(told.contains("LEASEHOLD_PASSWORD_FILE") && told.contains("does not inherit"), "{told}");
        assert!(!told.contains(CANARY), "{told}");
    }
    // The same for a store that a configuration file names.
    home.write("leasehold.toml", &format!("store = \"{}\"", server.url()));
    let mut command = home.leasehold();
    command.args(["run", "outer", "-c", &nested]).env("LEASEHOLD_PASSWORD", CANARY);
    let (code, _, told) = said(&mut command);
    assert!(code == 69 && told.contains("does not inherit") && !told.contains(CANARY), "{told}");
    std::fs::remove_file(home.path().join("leasehold.toml")).unwrap();
    let password_file = home.path().join("password").display().to_string();
    // The address is inherited. The password is not, but the name of the file that has it is.
    for user in ["", "alice@"] {
        let bare = format!("redis://{user}{}/?prefix=team:", server.addr());
        let (code, out, told) = run(&bare, &[("LEASEHOLD_PASSWORD_FILE", password_file.clone())]);
        assert_eq!(code, 0, "{told}");
        assert!(out.contains("\"outer\"") && out.contains("\"inner\""), "one store for all: {out}");
    }
    // A URL whose password has no certain end is not handed on at all, which is an error inside.
    let url = format!("file:{}", home.path().join("used").display());
    let odd = format!("redis://u:{CANARY}/x@h/");
    let (code, out, told) = said(
        home.leasehold().args(["run", "--store", &url, "x", "-c", &nested]).env("LEASEHOLD_STORE", &odd),
    );
    assert_eq!((code, out.as_str()), (78, ""), "{told}");
    assert!(told.contains("LEASEHOLD_STORE was withheld") && !told.contains(CANARY), "{told}");
    assert!(!home.store().exists(), "nothing used the default store");
}

#[test]
fn a_password_file_may_be_a_pipe_but_never_stops_or_floods_the_command() {
    let (server, home) = (guarded(), home());
    let run = |file: &str| {
        said(home.leasehold().args(["ls", "--password-file", file]).env("LEASEHOLD_STORE", server.url()))
    };
    let made = std::process::Command::new("mkfifo").arg(home.path().join("fifo")).status().unwrap();
    assert!(made.success());
    let (code, _, told) = run("fifo");
    assert!(code == 64 && told.contains("`fifo` has no password in its first line"), "{told}");
    let (code, _, told) = run("/dev/zero");
    assert!(code == 64 && told.contains("it is not a regular file"), "{told}");
    std::os::unix::fs::chown(home.path().join("password"), Some(4_711), None).unwrap();
    let (code, _, told) = run("password");
    assert!(code == 0 && told.contains("`password` belongs to user 4711, who can"), "{told}");
    // As the shell makes it of `<(pass show redis)`.
    let mut command = Command::new("bash");
    command.args(["-c", "exec \"$L\" ls --password-file <(sleep 0.1; cat password)"]);
    command.env("L", assert_cmd::cargo::cargo_bin("leasehold")).env("LEASEHOLD_STORE", server.url());
    let (code, _, told) = said(command.env("HOME", home.path()).current_dir(home.path()));
    assert_eq!((code, told.as_str()), (0, ""));
}
