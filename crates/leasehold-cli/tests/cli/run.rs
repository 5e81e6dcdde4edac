//! `leasehold run` as a user meets it: exit codes, options, signals, processes.

use std::time::{Duration, Instant};

use crate::common::roles::program;
use crate::common::{Home, Running, kill, lives, said, until};
use rustix::process::Signal;

fn is_held(home: &Home, name: &str) -> bool {
    home.call(["inspect", name]).0 == 75
}

/// Starts a holder of `x` that ends when its standard input does.
fn holder(home: &Home) -> Running {
    let mut holder = home.start(["run", "x", "--", "sh", "-c", "echo ready; cat"]);
    assert_eq!(holder.line(), "ready");
    holder
}

#[test]
fn every_end_has_its_exit_code() {
    let home = Home::in_memory();
    home.write("not_a_program", "no magic in here");
    let mine = home.script("mine", "exit 9");
    for (args, code, told) in [
        (vec!["run", "x", "--", "true"], 0, ""),
        (vec!["run", "x", "true"], 0, ""),
        (vec!["run", "x", "--", "false"], 1, ""),
        (vec!["run", "x", "--", &mine], 9, ""),
        (vec!["run", "x", "--", "sh", "-c", "exit 255"], 255, ""),
        (vec!["run", "x", "--", "sh", "-c", "kill -TERM $$"], 143, ""),
        (vec!["run", "x", "--", "sh", "-c", "kill -KILL $$"], 137, ""),
        (vec!["run", "x", "-c", "exit 7"], 7, ""),
        (vec!["run", "x", "--", "no_such_program"], 127, "cannot run `no_such_program`: No such file"),
        (vec!["run", "x", "--", "./not_a_program"], 126, "cannot run `./not_a_program`: Permission denied"),
        (vec!["run", "x", "--", "/"], 126, "cannot run `/`: Permission denied"),
        (vec!["run", "--max-runtime", "50ms", "x", "--", "sleep", "1000"], 124, "ran for longer than"),
        (vec!["run"], 64, "<NAME>"),
        (vec!["run", "x"], 64, "COMMAND"),
        (vec!["run", "x", "--"], 64, "COMMAND"),
        (vec!["run", "x", "--", ""], 64, "Write the command after `--`"),
        (vec!["run", "x", "-c", "true", "--", "true"], 64, "cannot be used with"),
        (vec!["run", "", "--", "true"], 64, "invalid name"),
        (vec!["run", "-n", "-w", "1", "x", "--", "true"], 64, "cannot be used with"),
        (vec!["run", "-s", "-x", "x", "--", "true"], 64, "cannot be used with"),
        (vec!["run", "-s", "--permits", "2", "x", "--", "true"], 64, "cannot be used with"),
        (vec!["run", "--permits", "0", "x", "--", "true"], 64, "such as 3 or 3/2"),
        (vec!["run", "--permits", "2/3", "x", "--", "true"], 64, "3 cannot be taken of 2"),
        (vec!["run", "--permits", "2/", "x", "--", "true"], 64, "such as 3 or 3/2"),
        (vec!["run", "-E", "256", "x", "--", "true"], 64, "256 is not in 0..=255"),
        (vec!["run", "-E", "3", "--skip", "x", "--", "true"], 64, "cannot be used with"),
        (vec!["run", "--signal", "NONE", "x", "--", "true"], 64, "write one of HUP, INT"),
        (vec!["run", "--on-lost", "panic", "x", "--", "true"], 64, "possible values: kill, signal, continue"),
        (vec!["run", "--ttl", "1s", "x", "--", "true"], 64, "use 2s or more"),
        (vec!["run", "--ttl", "1s", "--on-lost", "continue", "x", "--", "true"], 0, ""),
        (vec!["run", "--ttl", "1s", "--on-lost", "signal", "x", "--", "true"], 0, ""),
        (vec!["run", "--ttl", "1ms", "--on-lost", "signal", "x", "--", "true"], 64, "a TTL lies between"),
        (vec!["run", "--ttl", "2s", "x", "--", "true"], 0, ""),
        (vec!["run", "--ttl", "10s", "-k", "4500ms", "x", "--", "true"], 0, ""),
        (vec!["run", "--ttl", "10s", "-k", "5s", "x", "--", "true"], 64, "takes at least 11 s"),
        (vec!["run", "--max-runtime", "0", "x", "--", "true"], 64, "leave it out for no limit"),
        (vec!["run", "--owner", "a\nb", "x", "--", "true"], 64, "invalid owner"),
        (vec!["run", "--store", "file:/proc/x", "x", "--", "true"], 69, "/proc/x"),
        (vec!["run", "--store", "memory:", "x", "--", "true"], 64, "nobody else would meet its locks"),
        (vec!["run", "x", "--", "echo hi | cat"], 127, "use -c"),
        (vec!["run", "--password-file", "p", "x", "--", "true"], 64, "has no password"),
    ] {
        let (ended, out, said) = said(home.leasehold().args(&args));
        assert_eq!(ended, code, "{args:?}: {said}");
        assert!(said.contains(told) && (told.is_empty() == said.is_empty()), "{args:?} says: {said}");
        assert_eq!(out, "", "{args:?}");
        assert!(!is_held(&home, "x"), "{args:?} leaves nothing behind");
    }
    home.write("leasehold.toml", "store = 1");
    assert_eq!(home.call(["run", "x", "--", "true"]).0, 78);
}

#[test]
fn the_command_gets_its_arguments_input_and_output_as_they_are() {
    let home = Home::in_memory();
    let (code, out, told) =
        home.call(["run", "x", "--", "printf", "%s|", "a b", "", "--help", "-n", "$HOME", "*"]);
    assert_eq!((code, out.as_str(), told.as_str()), (0, "a b||--help|-n|$HOME|*|", ""));
    let (code, out, _) = said(home.leasehold().args(["run", "x", "cat"]).write_stdin("one\ntwo"));
    assert_eq!((code, out.as_str()), (0, "one\ntwo"), "without `--` too");
    let (_, out, told) = home.call(["run", "x", "--", "sh", "-c", "echo out; echo told >&2"]);
    assert_eq!((out.as_str(), told.as_str()), ("out\n", "told\n"));
    // Bytes that are no text.
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(&[b'a', 0xFF]);
    let output = home.leasehold().args(["run", "x", "--", "printf", "%s"]).arg(odd).output().unwrap();
    assert_eq!(output.stdout, [b'a', 0xFF]);
    // Through the shell of the user's choice, and only where that was asked for.
    let shell = home.script("shell", "echo \"my shell: $1 $2\"");
    let (_, out, _) = said(home.leasehold().args(["run", "x", "-c", "echo $((1+1))"]).env("SHELL", &shell));
    assert_eq!(out, "my shell: -c echo $((1+1))\n");
    let (_, out, _) = home.call(["run", "x", "-c", "echo $((1+1))"]);
    assert_eq!(out, "2\n", "/bin/sh where there is none");
}

#[test]
fn the_command_knows_its_lease_and_no_secret() {
    let home = Home::in_memory();
    let mut command = home.leasehold();
    command
        .args(["run", "--ttl", "45s", "--owner", "me", "orders:1", "--", "env"])
        .env("LEASEHOLD_NAME", "inherited")
        .env("LEASEHOLD_FENCE", "1")
        .env("LEASEHOLD_TOKEN", "canary")
        .env("LEASEHOLD_PASSWORD", "canary")
        .env("OTHER", "kept");
    let (code, out, _) = said(&mut command);
    assert_eq!(code, 0);
    let value = |key: &str| {
        let mut values = out.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let value = values.next().map(str::to_owned);
        assert_eq!(values.next(), None, "{key} is there once");
        value
    };
    assert_eq!(value("LEASEHOLD_NAME").as_deref(), Some("orders:1"));
    assert_eq!(value("LEASEHOLD_OWNER").as_deref(), Some("me"));
    assert_eq!(value("LEASEHOLD_TTL_MS").as_deref(), Some("45000"));
    assert!(value("LEASEHOLD_FENCE").unwrap().parse::<u64>().unwrap() > 1);
    assert_eq!(value("OTHER").as_deref(), Some("kept"));
    assert!(!out.contains("canary"), "{out}");
    // A store without a password is no secret, and what the command calls may need it.
    let url = format!("file:{}", home.path().join("other").display());
    let env = |url: &str, store: &str| {
        said(home.leasehold().args(["run", "--store", store, "x", "--", "env"]).env("LEASEHOLD_STORE", url)).1
    };
    assert!(env(&url, &url).contains(&format!("LEASEHOLD_STORE={url}\n")));
    assert!(!env("redis://:canary@somewhere/", &url).contains("canary"));
}

#[test]
fn who_does_not_get_it_says_so_in_the_way_that_was_asked_for() {
    let home = Home::in_memory();
    let holder = holder(&home);
    for (args, code) in [
        (vec!["-n"], 75),
        (vec!["-w", "0"], 75),
        (vec!["-w", "50ms"], 75),
        (vec!["-n", "-E", "0"], 0),
        (vec!["-w", "0.05", "-E", "3"], 3),
    ] {
        let (ended, out, told) =
            said(home.leasehold().arg("run").args(&args).args(["x", "--", "echo", "no"]));
        assert_eq!((ended, out.as_str()), (code, ""), "{args:?}");
        assert!(told.contains("`x` is held by") && told.contains("--wait"), "{told}");
    }
    // Silence was asked for.
    let nothing = (0, String::new(), String::new());
    assert_eq!(home.call(["run", "--skip", "x", "--", "echo", "no"]), nothing);
    assert_eq!(home.call(["run", "--skip", "-w", "50ms", "x", "--", "echo", "no"]), nothing);
    // For machines.
    let (code, out, _) = home.call(["run", "-n", "--output", "json", "x", "--", "echo", "no"]);
    let told: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &told["error"]["kind"], &told["error"]["code"]), (75, &"busy".into(), &75.into()));
    // And who waits, gets it.
    let mut waiting = home.start(["run", "-w", "60", "x", "--", "echo", "mine"]);
    until(|| home.call(["inspect", "x"]).1.contains("1. in line"), "a waiter");
    assert_eq!(holder.end().0, 0);
    assert_eq!(waiting.line(), "mine");
    assert_eq!(waiting.end().0, 0);
}

#[test]
fn some_share_it_and_some_count() {
    let home = Home::in_memory();
    let share = |args: &'static str| {
        let words: Vec<&str> = args.split_whitespace().collect();
        let mut command = home.leasehold();
        said(command.args(["run", "-n"]).args(words).args(["x", "--", "echo", "in"])).0
    };
    let held = |args: [&str; 8]| {
        let mut holder = home.start(args);
        assert_eq!(holder.line(), "ready");
        holder
    };
    let reader = held(["run", "-s", "x", "--", "sh", "-c", "echo ready; cat", ""]);
    assert_eq!((share("-s"), share("--shared"), share("-x"), share("")), (0, 0, 75, 75));
    assert!(home.call(["inspect", "x"]).1.contains("(shared)"));
    assert_eq!(reader.end().0, 0);
    let permits = held(["run", "--permits=3/2", "x", "--", "sh", "-c", "echo ready; cat", ""]);
    assert_eq!((share("--permits 3"), share("--permits 3/2"), share("-x"), share("-s")), (0, 75, 75, 75));
    assert_eq!(permits.end().0, 0);
    let writer = held(["run", "-x", "x", "--", "sh", "-c", "echo ready; cat", ""]);
    assert_eq!((share("-s"), share("--permits 3"), share("-x")), (75, 75, 75));
    assert_eq!(writer.end().0, 0);
}

#[test]
fn it_is_kept_for_as_long_as_was_asked_for_at_least() {
    let home = Home::in_memory();
    let start = Instant::now();
    let (code, out, told) =
        home.call(["run", "--at-least", "2s", "x", "--", "sh", "-c", "echo done; exit 3"]);
    assert_eq!((code, out.as_str(), told.as_str()), (3, "done\n", ""));
    assert_eq!(home.call(["run", "-n", "x", "--", "true"]).0, 75, "the command has ended, its lock has not");
    assert_eq!(home.call(["run", "-w", "60", "x", "--", "true"]).0, 0);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    // Where the command took longer than that, it makes no difference.
    assert_eq!(home.call(["run", "--at-least", "10ms", "x", "--", "sleep", "0.05"]).0, 0);
    assert!(!is_held(&home, "x"));
}

#[test]
fn signals_reach_the_command_as_if_nobody_stood_between() {
    let home = Home::in_memory();
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ] {
        let traps = program(&home, &format!("traps {}", signal.as_raw()));
        let mut handled = home.start(["run", "x", "--", &traps]);
        handled.line_that_is("ready");
        handled.signal(signal);
        handled.line_that_is(&format!("got {}", signal.as_raw()));
        let (code, out, told) = handled.end();
        assert_eq!((code, out.as_str(), told.as_str()), (7, "", ""), "{name}: once, and its own exit code");
        if signal == Signal::WINCH {
            continue;
        }
        let mut plain =
            home.start(["run", "x", "--", "sh", "-c", "ulimit -c 0; echo ready; exec sleep 1000"]);
        assert_eq!(plain.line(), "ready");
        plain.signal(signal);
        assert_eq!(plain.end().0, 128 + signal.as_raw(), "{name}");
        assert!(!is_held(&home, "x"));
        // Nobody has started yet.
        let holder = holder(&home);
        let waiting = home.start(["run", "x", "--", "echo", "no"]);
        until(|| home.call(["inspect", "x"]).1.contains("1. in line"), "a waiter");
        waiting.signal(signal);
        let (code, out, told) = waiting.end();
        assert_eq!((code, out.as_str(), told.as_str()), (128 + signal.as_raw(), "", ""), "{name}");
        assert!(!home.call(["inspect", "x"]).1.contains("in line"), "{name}: it has left the line");
        assert_eq!(holder.end().0, 0);
    }
}

#[test]
fn what_is_ignored_stays_ignored() {
    let home = Home::in_memory();
    let binary = assert_cmd::cargo::cargo_bin("leasehold");
    let line = format!("trap '' HUP; exec {} run x -- sh -c 'kill -HUP $$; echo alive'", binary.display());
    let output =
        std::process::Command::new("sh").args(["-c", &line]).env("HOME", home.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "alive\n");
    // And what is not, is not: the command is as it would be without us.
    let look = "grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status";
    let (_, out, _) = home.call(["run", "x", "--", "sh", "-c", look]);
    let bare = std::process::Command::new("sh").args(["-c", look]).output().unwrap();
    assert_eq!(out, String::from_utf8_lossy(&bare.stdout));
}

#[test]
fn one_that_will_not_end_is_ended_with_everything_it_started() {
    let home = Home::in_memory();
    // In its own group, in another group, in another session, orphaned, stopped, and deaf to SIGTERM.
    let script = home.script(
        "stubborn",
        "trap '' TERM
        sh -c 'sleep 1000; sleep 1000' & echo $!
        setsid sh -c 'trap \"\" TERM; sleep 1000; sleep 1000' & echo $!
        (setsid sh -c 'echo $$; trap \"\" TERM; sleep 1000; sleep 1000' &)
        sh -c 'kill -STOP $$; sleep 1000' & echo $!
        echo $$
        sleep 1000; sleep 1000",
    );
    let start = Instant::now();
    let mut running = home.start(["run", "--max-runtime", "1s", "-k", "300ms", "x", "--", &script]);
    let pids: Vec<i32> = (0..5).map(|_| running.pid()).collect();
    assert!(pids.iter().all(|pid| lives(*pid)), "they run: {pids:?}");
    let (code, _, told) = running.end();
    assert_eq!(code, 124, "{told}");
    assert!(start.elapsed() >= Duration::from_millis(1_300), "it had its time, and its grace");
    assert!(told.contains("ran for longer than its --max-runtime of 1.0 s"), "{told}");
    assert!(pids.iter().all(|pid| !lives(*pid)), "nothing is left: {pids:?}");
    assert!(!is_held(&home, "x"));
}

#[test]
fn one_that_ends_when_asked_is_not_killed() {
    let home = Home::in_memory();
    let script = "trap 'echo cleaning up; exit 0' USR1; echo ready; while :; do sleep 0.01; done";
    let mut running = home.start([
        "run",
        "--max-runtime",
        "200ms",
        "--signal",
        "USR1",
        "-k",
        "60s",
        "--ttl",
        "180s",
        "x",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(running.line(), "ready");
    assert_eq!(running.line(), "cleaning up");
    assert_eq!(running.end().0, 124, "it ran too long all the same");
}

#[test]
fn what_it_leaves_in_the_background_is_waited_for_unless_that_is_not_wanted() {
    let home = Home::in_memory();
    // It must not have our output, or a reader would wait for it too.
    let leave = "sleep 1000 >/dev/null 2>&1 & echo $!; exit 5";
    let mut waits = home.start(["run", "x", "--", "sh", "-c", leave]);
    let left = waits.pid();
    until(|| !lives_child(&waits, "sh"), "the shell to end");
    assert!(lives(left) && is_held(&home, "x"), "it is still protected");
    kill(left);
    let (code, _, told) = waits.end();
    assert_eq!(code, 5, "the command's own");
    let expected = format!("`sh` has ended, but something it started still runs: {left} (");
    assert!(told.contains(&expected), "{told}");

    let mut lets_go = home.start(["run", "-o", "x", "--", "sh", "-c", leave]);
    let left = lets_go.pid();
    let (code, _, told) = lets_go.end();
    assert_eq!((code, told.as_str()), (5, ""));
    assert!(lives(left) && !is_held(&home, "x"), "as was asked for");
    kill(left);

    // Signals reach what is left, too.
    let mut waits = home.start(["run", "x", "--", "sh", "-c", leave]);
    let left = waits.pid();
    until(|| !lives_child(&waits, "sh"), "the shell to end");
    waits.signal(Signal::TERM);
    assert_eq!(waits.end().0, 5);
    assert!(!lives(left));
}

/// Whether it has a child of this name.
fn lives_child(running: &Running, name: &str) -> bool {
    let pid = running.child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().any(|child| {
        let comm = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        comm.trim() == name && lives(child.parse().unwrap())
    })
}

#[test]
fn children_of_a_shell_that_became_it_are_left_alone() {
    let home = Home::in_memory();
    let binary = assert_cmd::cargo::cargo_bin("leasehold");
    let line = format!(
        "sleep 1000 >/dev/null 2>&1 & echo $!; exec {} run --max-runtime 200ms x -- sh -c 'sleep 1000; :'",
        binary.display()
    );
    let output =
        std::process::Command::new("sh").args(["-c", &line]).env("HOME", home.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(124));
    let stranger: i32 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    assert!(lives(stranger), "it was not the command's");
    kill(stranger);
}

/// What a killed leasehold leaves: (itself, its command, the command's child in another session).
fn killed_while_it_runs(home: &Home, ttl: &str, option: &str) -> (i32, i32) {
    let script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!; echo $$; exec sleep 1000";
    let mut running = home.start(["run", "--ttl", ttl, option, "x", "--", "sh", "-c", script]);
    let (grandchild, child) = (running.pid(), running.pid());
    running.signal(Signal::KILL);
    running.child.wait().unwrap();
    (child, grandchild)
}

#[test]
fn a_killed_leasehold_takes_its_command_along_and_nobody_overlaps_what_is_left() {
    let home = Home::in_memory();
    let (child, grandchild) = killed_while_it_runs(&home, "300s", "-x");
    until(|| !lives(child), "the command to die with leasehold");
    assert!(lives(grandchild));
    let mut second = home.start(["run", "x", "--", "echo", "mine"]);
    until(|| home.call(["inspect", "x"]).1.contains("1. in line"), "a waiter");
    assert_eq!(home.call(["run", "-n", "x", "--", "true"]).0, 75, "something of it still runs");
    kill(grandchild);
    assert_eq!(second.line(), "mine", "at once, and long before its TTL");
    assert_eq!(second.end().0, 0);

    // The TTL bounds it.
    let start = Instant::now();
    let (_, grandchild) = killed_while_it_runs(&home, "3s", "-x");
    assert_eq!(home.call(["run", "-w", "60", "x", "--", "true"]).0, 0);
    // It was renewed when it was started, at least.
    assert!(start.elapsed() >= Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(lives(grandchild));
    kill(grandchild);

    // Where that is not wanted, it is free as soon as leasehold is dead.
    let (_, grandchild) = killed_while_it_runs(&home, "300s", "-o");
    let (code, _, told) = home.call(["run", "-w", "60", "x", "--", "true"]);
    assert_eq!(code, 0, "{told}");
    assert!(lives(grandchild));
    kill(grandchild);
}

#[test]
fn eight_processes_count_without_losing_one() {
    const PROCESSES: usize = 8;
    let home = Home::in_memory();
    home.write("counter", "0");
    // Read, add one, write, with a process in between: whoever runs beside it loses an update.
    let add = home.script("add", "n=$(cat counter); : $(/bin/true); echo $((n + 1)) > counter");
    let rounds = 50;
    std::thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let (code, _, told) = home.call(["run", "-q", "counter", "--", &add]);
                    assert_eq!((code, told.as_str()), (0, ""));
                }
            });
        }
    });
    assert_eq!(home.read("counter").trim(), (PROCESSES * rounds).to_string());
}

#[test]
fn nobody_has_to_read_what_it_says() {
    let home = Home::in_memory();
    let mut running =
        home.start_with(["run", "-v", "x", "--", "sh", "-c", "echo ready; cat; exit 3"], |_| {});
    assert_eq!(running.line(), "ready");
    drop(running.child.stderr.take());
    assert_eq!(running.end().0, 3);
    let output = home.leasehold().args(["run", "-v", "x", "--", "echo", "hi"]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("`x` acquired after") && told.contains("`x` given back after"), "{told}");
}
