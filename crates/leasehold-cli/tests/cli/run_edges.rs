//! `leasehold run` where little goes as usual: too few descriptors or processes, processes that cannot be seen or ended, signals
//! that are blocked, nobody who reads.

use std::time::{Duration, Instant};

use crate::common::{Home, lives, until};
use rustix::process::Signal;

#[test]
fn one_that_hands_on_to_its_successor_again_and_again_is_waited_for_and_ended() {
    let home = Home::in_memory();
    // Nobody is there for longer than it takes to start the next.
    let chain = home
        .script("chain", "[ $1 -le 0 ] && { echo done > done; exit; }; setsid ./chain $(($1 - 1)) & exit 0");
    let (code, _, told) = home.call(["run", "-q", "x", "--", &chain, "300"]);
    assert_eq!((code, told.as_str()), (0, ""));
    assert_eq!(home.read("done"), "done\n", "the last of them has ended");
    let (code, _, told) =
        home.call(["run", "--max-runtime", "300ms", "-k", "0", "x", "--", &chain, "1000000"]);
    assert_eq!(code, 124, "{told}");
}

#[test]
fn too_few_descriptors_are_no_reason_to_let_go() {
    let home = Home::in_memory();
    let leave = home.script("leave", "(sleep 0.2; echo done > \"$1\") > /dev/null 2>&1 &");
    let binary = assert_cmd::cargo::cargo_bin("leasehold");
    let mut ran = 0;
    for limit in 16..40 {
        let file = format!("done_{limit}");
        let line = format!("ulimit -n {limit}; exec {} run -q x -- {leave} {file}", binary.display());
        let output = std::process::Command::new("sh")
            .args(["-c", &line])
            .env("HOME", home.path())
            .current_dir(home.path())
            .output()
            .unwrap();
        if output.status.success() {
            ran += 1;
            assert_eq!(home.read(&file), "done\n", "at {limit}: {output:?}");
        }
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "at {limit}: {output:?}");
    }
    assert!(ran > 0, "some of these are enough");
}

/// As somebody who is not root, in a place where programs may be root's. Ends with `rc=…` for each line.
fn as_nobody(home: &Home, lines: &[&str]) -> String {
    let script = home.script(
        "as_nobody",
        &format!(
            "set -e
            mount -t tmpfs -o mode=755 none \"$1\"; cd \"$1\"
            cp \"$2\" leasehold; cp \"$(command -v setpriv)\" becomes_root; chmod 4755 becomes_root
            mkdir -m 700 home; chown 65533:65533 home
            export HOME=$PWD/home
            as() {{ setpriv --reuid=65533 --regid=65533 --clear-groups \"$@\"; }}
            set +e
            {}",
            lines.iter().map(|line| format!("{line}; echo \"rc=$?\"\n")).collect::<String>()
        ),
    );
    home.write("place/x", "");
    let place = home.path().join("place");
    let output = std::process::Command::new("unshare")
        .args(["--mount", &script])
        .arg(&place)
        .arg(assert_cmd::cargo::cargo_bin("leasehold"))
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn who_cannot_be_ended_keeps_the_lock() {
    let home = Home::in_memory();
    let told = as_nobody(
        &home,
        &[
            "as ./leasehold run --max-runtime 200ms -k 100ms x -- ./becomes_root --reuid=0 sleep 1.5 &
             sleep 1; as ./leasehold run -n x -- echo beside it",
            "wait $!",
        ],
    );
    assert!(told.contains("could not be ended: ") && told.contains("`x` is held until it ends"), "{told}");
    assert!(told.contains("`x` is held by") && !told.contains("beside it"), "{told}");
    assert!(told.contains("rc=75\nrc=124\n"), "{told}");
    assert_eq!(told.matches("could not be ended").count(), 1, "{told}");
}

#[test]
fn one_that_has_taken_every_process_there_is_can_be_ended() {
    let home = Home::in_memory();
    let told = as_nobody(
        &home,
        &[
            "as prlimit --nproc=25 ./leasehold run --max-runtime 500ms -k 200ms x -- \
                 sh -c 'trap \"\" TERM; while :; do sleep 25 & done' 2>&1 | grep -v fork",
            "ps -U 65533 -o args=",
        ],
    );
    assert!(told.contains("ran for longer than its --max-runtime of 500 ms"), "{told}");
    assert!(!told.contains("panicked") && !told.contains("sleep 25\n"), "{told}");
}

#[test]
fn a_view_of_other_processes_is_not_acted_upon() {
    let home = Home::in_memory();
    // In a PID namespace of its own that still has the /proc of the outer one.
    let output = std::process::Command::new("unshare")
        .args(["--pid", "--fork"])
        .arg(assert_cmd::cargo::cargo_bin("leasehold"))
        .args(["run", "x", "--", "echo", "no"])
        .env("HOME", home.path())
        .output()
        .unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), b"".as_slice()));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("another PID namespace"), "{told}");
}

#[test]
fn what_is_meant_for_the_command_alone_does_not_reach_its_children() {
    let home = Home::in_memory();
    let script = "trap 'echo rotated' USR1; echo ready; sleep 0.3; echo \"child: $?\"";
    let mut running = home.start(["run", "x", "--", "sh", "-c", script]);
    assert_eq!(running.line(), "ready");
    running.signal(Signal::USR1);
    assert_eq!((running.line(), running.line()), ("rotated".to_owned(), "child: 0".to_owned()));
    assert_eq!(running.end().0, 0);
}

#[test]
fn its_end_is_noticed_whatever_signals_are_blocked() {
    let home = Home::in_memory();
    let start = Instant::now();
    let status = std::process::Command::new("env")
        .arg("--block-signal=CHLD")
        .arg(assert_cmd::cargo::cargo_bin("leasehold"))
        .args(["run", "--ttl", "10m", "x", "--", "sleep", "0.05"])
        .env("HOME", home.path())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn one_that_ended_in_time_is_not_said_to_have_run_too_long() {
    let home = Home::in_memory();
    let mut running =
        home.start(["run", "--max-runtime", "1s", "x", "--", "sh", "-c", "echo $$; exec sleep 0.2"]);
    let pid = running.pid();
    running.signal(Signal::STOP);
    until(|| !lives(pid), "the command to end");
    std::thread::sleep(Duration::from_millis(1_100));
    running.signal(Signal::CONT);
    let (code, _, told) = running.end();
    assert_eq!((code, told.as_str()), (0, ""));
}

#[test]
fn a_reader_who_cannot_read_is_no_reason_for_another_exit_code() {
    let home = Home::in_memory();
    let full = || std::process::Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    for (program, code) in [("no_such_program", 127), ("/", 126)] {
        let running = home.start_with(["run", "x", "--", program], |command| {
            command.stderr(full());
        });
        assert_eq!(running.end().0, code);
    }
}
