//! `leasehold run --once-per` and `--at-least`: which runs count, and what happens when the store cannot record one.

use std::time::Duration;

use crate::common::{Home, Running, until};
use leasehold_lab::{Flow, Kind, Proxy, Server, Toward, Trick};
use rustix::process::Signal;

/// Longer than the Redis store waits for one reply.
const PAUSE: Duration = Duration::from_millis(1_300);

/// Starts a run that holds `x` with `option` until its standard input ends.
fn start_run(home: &Home, store: &str, option: [&str; 2], ttl: &str) -> Running {
    let [option, value] = option;
    let script = "echo ready; cat; echo ran >> runs";
    let mut running =
        home.start(["run", "--store", store, "--ttl", ttl, option, value, "x", "--", "sh", "-c", script]);
    assert_eq!(running.line(), "ready");
    running
}

/// A server that knows the scripts, so that the first request it gets is executed whether or not its reply arrives.
fn warm_server(home: &Home) -> Server {
    let server = Server::start(Kind::Redis).unwrap();
    let warm_up = ["run", "--store", &server.url(), "--at-least", "100ms", "warm", "--", "true"];
    assert_eq!(home.call(warm_up).0, 0);
    server
}

/// Tries a second run. Returns whether its command ran.
fn runs_again(home: &Home, store: &str, option: [&str; 2]) -> bool {
    let [option, value] = option;
    let (code, out, told) =
        home.call(["run", "--store", store, "-q", option, value, "x", "--", "echo", "again"]);
    assert!(code == 0 || code == 75, "{code}: {told}");
    out == "again\n"
}

const ONCE: [&str; 2] = ["--once-per", "10m"];

#[test]
fn a_server_that_pauses_as_the_command_ends_still_records_the_run() {
    let home = Home::in_memory();
    let server = Server::start(Kind::Redis).unwrap();
    let running = start_run(&home, &server.url(), ONCE, "30s");
    server.pause().unwrap();
    let resumed = std::thread::scope(|scope| {
        let resumed = scope.spawn(|| {
            std::thread::sleep(PAUSE);
            server.resume().unwrap();
        });
        let (code, _, told) = running.end();
        assert_eq!((code, told.as_str()), (0, ""), "recorded as soon as the server answers");
        resumed.join()
    });
    resumed.unwrap();
    assert!(!runs_again(&home, &server.url(), ONCE), "the run was recorded");
    assert_eq!(home.read("runs"), "ran\n");
}

#[test]
fn a_lost_reply_does_not_undo_the_record_of_a_run() {
    let home = Home::in_memory();
    let server = warm_server(&home);
    let proxy = Proxy::to(server.addr()).unwrap();
    for option in [ONCE, ["--at-least", "10m"]] {
        let running = start_run(&home, &proxy.url(), option, "60s");
        proxy.arm_for("EVALSHA", Trick::LoseReply);
        let (code, _, told) = running.end();
        assert_eq!((code, told.as_str()), (0, ""));
        assert_eq!(proxy.armed(), 0, "the reply was lost");
        let again = ["run", "--store", &server.url(), "-n", "x", "--", "true"];
        assert_eq!(home.call(again).0, 75, "{}: the name stays taken", option[0]);
        assert_eq!(home.call(["evict", "--store", &server.url(), "--yes", "x"]).0, 0);
    }
}

#[test]
fn a_run_that_is_not_confirmed_as_recorded_is_an_error_and_is_not_given_back() {
    let home = Home::in_memory();
    let server = warm_server(&home);
    let proxy = Proxy::to(server.addr()).unwrap();
    let running = start_run(&home, &proxy.url(), ONCE, "6s");
    // Requests arrive, and no reply ever does.
    proxy.set(Toward::Client, Flow::Swallow);
    let (code, _, told) = running.end();
    assert_eq!(code, 74, "{told}");
    assert!(told.contains("the store has not confirmed that this run of `x` is recorded"), "{told}");
    assert!(told.contains("`sh` ended with exit code 0"), "{told}");
    assert!(told.contains("leasehold inspect x"), "{told}");
    assert!(!runs_again(&home, &server.url(), ONCE), "the record reached the server, and stays");
}

#[test]
fn a_run_is_not_recorded_on_a_server_that_has_gone_and_that_is_an_error() {
    let home = Home::in_memory();
    let server = Server::start(Kind::Redis).unwrap();
    let running = start_run(&home, &server.url(), ONCE, "6s");
    server.kill().unwrap();
    let (code, _, told) = running.end();
    assert_eq!(code, 74, "{told}");
    assert!(told.contains("the store has not confirmed that this run of `x` is recorded"), "{told}");
}

/// Starts a run of `script`, which says `ready`, then has `end` end it. Returns its exit code, what was told, and whether
/// another run begins after it.
fn run_and_again(options: &[&str], script: &str, end: impl FnOnce(&mut Running)) -> (i32, String, bool) {
    let home = Home::in_memory();
    let mut running = home.start_with(["run", "--once-per", "10m"], |command| {
        command.args(options).args(["x", "--", "sh", "-c", script]);
    });
    assert_eq!(running.line(), "ready");
    end(&mut running);
    let (code, _, told) = running.end();
    let store = format!("file:{}", home.store().display());
    (code, told, runs_again(&home, &store, ONCE))
}

const SLEEPS: &str = "echo ready; exec sleep 1000";

#[test]
fn an_interrupted_run_does_not_count_unless_asked() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let (code, told, again) = run_and_again(&[], SLEEPS, |running| running.signal(signal));
        assert_eq!(code, 128 + signal.as_raw(), "{told}");
        assert!(told.contains("`x` was interrupted: this run does not count for --once-per"), "{told}");
        assert!(again, "{signal:?}");
    }
    // The exit code of a command that handles the signal does not matter.
    let handles = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let (code, told, again) = run_and_again(&[], handles, |running| running.signal(Signal::TERM));
    assert_eq!((code, again), (0, true), "{told}");
    let (code, told, again) =
        run_and_again(&["--count-interrupted"], SLEEPS, |running| running.signal(Signal::TERM));
    assert_eq!((code, again), (143, false), "{told}");
    assert_eq!(told, "");
}

#[test]
fn a_run_that_is_interrupted_while_leasehold_is_stopped_does_not_count() {
    use std::os::unix::process::CommandExt;
    let home = Home::in_memory();
    let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let mut running =
        home.start_with(["run", "--once-per", "10m", "x", "--", "sh", "-c", script], |command| {
            // leasehold stops only if a process of its session, outside its group, can continue it.
            command.process_group(0);
        });
    assert_eq!(running.line(), "ready");
    running.signal(Signal::TSTP);
    let stat = format!("/proc/{}/stat", running.child.id());
    let is_stopped = || std::fs::read_to_string(&stat).unwrap().contains(") T ");
    until(is_stopped, "leasehold to be stopped");
    running.signal(Signal::TERM);
    running.signal(Signal::CONT);
    let (code, _, told) = running.end();
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("`x` was interrupted: this run does not count for --once-per"), "{told}");
    assert_eq!(home.run("run --once-per 10m x -- echo again").1, "again\n");
}

#[test]
fn a_run_whose_command_is_killed_does_not_count() {
    for (signal, counts) in [(Signal::KILL, false), (Signal::TERM, false), (Signal::SEGV, true)] {
        let script = "echo ready; read pid; kill -$pid $$; sleep 1000";
        let (code, told, again) = run_and_again(&[], script, |running| {
            use std::io::Write;
            writeln!(running.child.stdin.as_mut().unwrap(), "{}", signal.as_raw()).unwrap();
        });
        assert_eq!((code, again), (128 + signal.as_raw(), !counts), "{signal:?}: {told}");
    }
}

#[test]
fn success_failure_and_a_time_limit_count_and_a_loss_does_not() {
    for (options, script, code) in [
        (&[][..], "echo ready; exit 0", 0),
        (&[], "echo ready; exit 3", 3),
        (&["--max-runtime", "300ms"], SLEEPS, 124),
    ] {
        let (ended, told, again) = run_and_again(options, script, |_| {});
        assert_eq!((ended, again), (code, false), "{script}: {told}");
    }
    let home = Home::in_memory();
    let mut running = home.start(["run", "--once-per", "10m", "--ttl", "3s", "x", "--", "sh", "-c", SLEEPS]);
    assert_eq!(running.line(), "ready");
    assert_eq!(home.run("evict --yes x").0, 0);
    let (code, _, told) = running.end();
    assert_eq!(code, 79, "{told}");
    assert_eq!(home.run("run --once-per 10m x -- echo again").1, "again\n");
}

#[test]
fn count_interrupted_needs_a_period() {
    let home = Home::in_memory();
    let (code, _, told) = home.run("run --count-interrupted x -- true");
    assert_eq!(code, 64, "{told}");
    assert!(told.contains("--once-per"), "{told}");
}
