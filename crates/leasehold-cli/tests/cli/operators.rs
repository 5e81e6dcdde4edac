//! What operators see without a terminal: who holds a lock, what a command waits for, and what happens to its lease.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, channel};
use std::thread::spawn;

use crate::common::terminal::Terminal;
use crate::common::{Home, LONG, Running, said, until};
use leasehold_lab::{Kind, Server, Setup};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The lines that a command writes to standard error, as they come.
fn stderr_of(running: &mut Running) -> Receiver<String> {
    lines_of(running.child.stderr.take().unwrap())
}

fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    lines
}

fn next(lines: &Receiver<String>) -> String {
    lines.recv_timeout(LONG).expect("a line on standard error")
}

/// A command that holds `x` until its standard input ends.
fn holder(home: &Home) -> Running {
    let mut holder = home.start(["run", "--owner", "anna", "x", "--", "sh", "-c", "echo ready; cat"]);
    assert_eq!(holder.line(), "ready");
    holder
}

#[test]
fn waiting_without_a_terminal_is_one_line_that_names_the_holder() {
    for command in [
        &["run", "x", "--", "true"][..],
        &["elect", "--once", "x", "--", "true"],
        &["lock", "x", "--ttl", "1m"],
    ] {
        let home = Home::new();
        let holder = holder(&home);
        let mut waiter = home.start_with([], |it| {
            it.args(command);
        });
        let lines = stderr_of(&mut waiter);
        let line = next(&lines);
        assert!(line.starts_with("leasehold: waiting for x: held by anna"), "{command:?}: {line}");
        assert_eq!(holder.end().0, 0);
        assert_eq!(waiter.end().0, 0);
        let more: Vec<String> = lines.iter().filter(|line| line.contains("waiting")).collect();
        assert!(more.is_empty(), "{command:?}: {more:?}");
    }
}

#[test]
fn waiting_for_a_rate_limit_without_a_terminal_is_a_line() {
    let home = Home::new();
    let ask = ["rate", "mails", "--max", "1", "--per", "2s"];
    assert_eq!(home.call(ask), (0, String::new(), String::new()));
    let (code, _, told) = home.call(ask);
    assert_eq!(code, 0, "{told}");
    assert!(told.starts_with("leasehold: waiting for mails: it lets through 1 in 2.0 s"), "{told}");
    assert_eq!(
        home.call(["--quiet", "rate", "mails", "--max", "1", "--per", "2s"]),
        (0, String::new(), String::new())
    );
}

#[test]
fn quiet_turns_the_line_about_waiting_off() {
    let home = Home::new();
    let _holder = holder(&home);
    for line in ["run -q -w 600ms x -- true", "lock -q -w 600ms x --ttl 1m"] {
        let (code, _, told) = home.run(line);
        assert_eq!(code, 75, "{told}");
        assert!(!told.contains("waiting for"), "{told}");
    }
}

#[test]
fn a_command_says_when_renewals_fail_and_when_they_work_again() {
    let home = Home::in_memory();
    let mut running =
        home.start(["run", "--ttl", "12s", "-k", "1s", "x", "--", "sh", "-c", "echo ready; cat"]);
    let lines = stderr_of(&mut running);
    assert_eq!(running.line(), "ready");
    let gate = File::options().write(true).open(home.store().join("gate")).unwrap();
    gate.lock().unwrap();
    let failed = next(&lines);
    assert!(failed.contains("the lease on `x` could not be renewed"), "{failed}");
    assert!(failed.contains("trying again until it ends in "), "{failed}");
    drop(gate);
    let again = next(&lines);
    assert!(again.contains("the lease on `x` is renewed again"), "{again}");
    assert_eq!(running.end().0, 0);
    assert_eq!(lines.iter().collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn log_formats_are_plain_with_time_stamps_or_json() {
    let home = Home::new();
    let _holder = holder(&home);
    let told = |format: &str, verbose: &str| {
        let args = ["--log-format", format, verbose, "run", "-n", "x", "--", "true"];
        let (code, _, told) = said(home.leasehold().args(args.iter().filter(|arg| !arg.is_empty())));
        assert_eq!(code, 75, "{told}");
        told
    };
    assert!(told("plain", "").starts_with("leasehold: `x` is held by anna"));
    let stamped = told("timestamps", "");
    let (time, message) = stamped.split_once(' ').unwrap();
    assert!(is_timestamp(time) && message.starts_with("leasehold: `x` is held by anna"), "{stamped}");
    for verbose in ["", "-vv"] {
        let json = told("json", verbose);
        let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert!(lines.iter().all(|line| is_timestamp(line["time"].as_str().unwrap())), "{json}");
        let last = lines.last().unwrap();
        assert_eq!(last["level"], "error", "{json}");
        assert!(last["message"].as_str().unwrap().starts_with("`x` is held by anna"), "{json}");
        assert_eq!(lines.iter().any(|line| line["level"] == "debug"), verbose == "-vv", "{json}");
    }
    let (code, _, told) = home.call(["--log-format", "json", "run", "y", "--", "no_such_program"]);
    let line: Value = serde_json::from_str(&told).expect(&told);
    assert_eq!(code, 127);
    assert!(line["message"].as_str().unwrap().starts_with("cannot run `no_such_program`"), "{told}");
}

/// RFC 3339 in UTC with milliseconds.
fn is_timestamp(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00.000Z"
}

/// Runs it on the file store and on a server.
fn on_both_stores(claim: impl Fn(&Home)) {
    claim(&Home::in_memory());
    let server = Server::start(Kind::Redis).unwrap();
    let home = Home::in_memory();
    home.write("leasehold.toml", &format!("store = \"{}\"", server.url()));
    claim(&home);
}

fn inspected(home: &Home, name: &str) -> Value {
    let (_, out, told) = home.call(["inspect", name, "--output", "json"]);
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out} {told}"))
}

fn output_of(program: &str, arg: &str) -> String {
    let output = std::process::Command::new(program).arg(arg).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn status_names_host_pid_user_and_command_and_since_when() {
    on_both_stores(|home| {
        let start = std::time::Instant::now();
        let mut holder = home.start(["run", "x", "--", "sh", "-c", "echo ready; cat"]);
        assert_eq!(holder.line(), "ready");
        let waiter = home.start(["run", "-q", "x", "--", "/bin/true"]);
        until(|| inspected(home, "x")["waiters"][0].is_object(), "a waiter");
        let (host, user) = (output_of("uname", "-n"), output_of("id", "-un"));
        let expect = |shown: &Value, pid: u32, command: &str, ms: &str| {
            let label = format!("{host}:{pid} ({user}: {command})");
            for (key, value) in
                [("owner", json!(label)), ("host", json!(host)), ("pid", json!(pid)), ("user", json!(user))]
            {
                assert_eq!(shown[key], value, "{shown}");
            }
            assert_eq!(shown["command"], command, "{shown}");
            assert!(is_second(shown["since"].as_str().unwrap()), "{shown}");
            assert!(
                u128::from(shown[ms].as_u64().unwrap()) <= start.elapsed().as_millis() + 1_000,
                "{shown}"
            );
        };
        let status = inspected(home, "x");
        expect(&status["holders"][0], holder.child.id(), "sh", "held_ms");
        expect(&status["waiters"][0], waiter.child.id(), "true", "waiting_ms");
        let (_, out, _) = home.run("ls --output json");
        let listed: Value = serde_json::from_str(&out).unwrap();
        expect(&listed["names"][0]["holders"][0], holder.child.id(), "sh", "held_ms");
        let (_, text, _) = home.run("inspect x");
        assert!(text.contains(&format!("({user}: sh) since 20")), "{text}");
        assert!(text.contains(&format!("({user}: true), since 20")), "{text}");
        let (_, text, _) = home.run("ls");
        assert!(text.contains("HELD FOR") && text.contains("1 (for "), "{text}");
        assert_eq!((holder.end().0, waiter.end().0), (0, 0));
    });
}

#[test]
fn an_owner_that_an_operator_chose_is_free_text() {
    let home = Home::new();
    let _holder = holder(&home);
    let shown = inspected(&home, "x");
    assert_eq!(shown["holders"][0]["owner"], "anna");
    for key in ["host", "pid", "user", "command"] {
        assert_eq!(shown["holders"][0][key], Value::Null, "{shown}");
    }
}

#[test]
fn a_lock_of_a_script_names_the_process_that_called() {
    let home = Home::new();
    assert_eq!(home.call(["lock", "x", "--ttl", "1m"]).0, 0);
    assert_eq!(inspected(&home, "x")["holders"][0]["pid"], std::process::id());
}

#[test]
fn a_run_once_per_period_shows_its_last_run() {
    on_both_stores(|home| {
        assert_eq!(inspected(home, "x")["once"], Value::Null);
        let mut running =
            home.start(["run", "--once-per", "10s", "x", "--", "sh", "-c", "echo ready; cat; exit 3"]);
        assert_eq!(running.line(), "ready");
        let once = inspected(home, "x")["once"].clone();
        assert_eq!(
            (&once["state"], &once["exit_code"], &once["next_run"]),
            (&json!("running"), &Value::Null, &Value::Null)
        );
        assert!(is_second(once["last_run"].as_str().unwrap()), "{once}");
        assert!(home.run("inspect x").1.contains("runs now"));
        assert_eq!(running.end().0, 3);
        let once = inspected(home, "x")["once"].clone();
        assert_eq!((&once["state"], &once["exit_code"]), (&json!("done"), &json!(3)), "{once}");
        let (last, next) = (once["last_run"].as_str().unwrap(), once["next_run"].as_str().unwrap());
        assert!(is_second(next) && last < next, "{once}");
        let (_, text, _) = home.run("inspect x");
        assert!(text.contains(", exit code 3 after ") && text.contains("; next run allowed at 20"), "{text}");
        let (_, text, _) = home.run("ls");
        assert!(text.contains("ONCE") && text.contains("done, exit 3"), "{text}");
        until(|| inspected(home, "x")["once"]["state"] == "due", "the end of the period");
        assert_eq!(inspected(home, "x")["once"]["exit_code"], 3);
        assert!(home.run("inspect x").1.contains("; next run allowed now"));
    });
}

fn is_second(text: &str) -> bool {
    text.len() == 20 && is_timestamp(&text.replace('Z', ".000Z"))
}

#[test]
fn a_command_waits_for_a_store_that_is_down() {
    let server = Server::start(Kind::Redis).unwrap();
    let home = Home::new();
    home.write("leasehold.toml", &format!("store = \"{}\"", server.url()));
    server.kill().unwrap();
    let (code, _, told) = home.run("ls");
    assert_eq!(code, 69, "{told}");
    let (code, _, told) = home.run("ls --store-wait 600ms");
    assert_eq!(code, 69, "{told}");
    assert!(told.contains("waiting for the store: ") && told.contains("; waited "), "{told}");
    let commands =
        ["run x -- echo ok", "elect --once y -- echo ok", "ls", "inspect z", "lock x2 --ttl 1m", "doctor"];
    let mut waiting: Vec<Running> = commands
        .iter()
        .map(|line| {
            home.start_with([], |it| {
                it.args(line.split_whitespace().take(1)).arg("--store-wait").arg("1m");
                it.args(line.split_whitespace().skip(1));
            })
        })
        .collect();
    let told: Vec<String> = waiting.iter_mut().map(|running| next(&stderr_of(running))).collect();
    assert!(told.iter().all(|line| line.starts_with("leasehold: waiting for the store: ")), "{told:?}");
    server.restart().unwrap();
    for (running, line) in waiting.into_iter().zip(commands) {
        let (code, out, _) = running.end();
        // `doctor` finds something to say about a server without persistence.
        assert!(code == 0 || line == "doctor" && code < 64, "{line}: {code} {out}");
    }
    // Nothing is gained by waiting for what will not change.
    let (code, _, told) = home.run("ls --store gopher:x --store-wait 1h");
    assert_eq!(code, 64, "{told}");
}

#[test]
fn the_program_of_on_lost_exec_is_checked_at_the_start() {
    let home = Home::new();
    home.write("text", "not a program");
    home.write("directory/file", "");
    for (hook, why) in [
        ("no_such_hook", "it is not in the PATH"),
        ("./no_such_hook", "No such file"),
        ("./text", "Permission denied"),
        ("./directory", "it is not a file"),
        ("", "name a program"),
    ] {
        for command in ["run", "elect"] {
            let (code, out, told) = home.call([command, "--on-lost-exec", hook, "x", "--", "echo", "ran"]);
            assert_eq!((code, out.as_str()), (64, ""), "{hook}: {told}");
            assert!(told.contains("--on-lost-exec") && told.contains(why), "{hook}: {told}");
        }
    }
    let hook = home.script("hook", "true");
    for hook in ["true", "./hook", &hook] {
        let (code, out, told) = home.call(["run", "--on-lost-exec", hook, "x", "--", "echo", "ran"]);
        assert_eq!((code, out.as_str()), (0, "ran\n"), "{hook}: {told}");
    }
}

#[test]
fn the_configuration_has_a_password_file_a_ttl_and_an_owner() {
    let server = Setup::new(Kind::Redis).password("secret").start().unwrap();
    let home = Home::new();
    let settings = format!(
        "store = \"{}\"\npassword_file = \"password\"\nttl = \"5m\"\nowner = \"fleet-7\"",
        server.url()
    );
    // Relative to the file, wherever the command is started.
    home.write(".config/leasehold/config.toml", &settings);
    home.write(".config/leasehold/password", "secret\n");
    let (code, out, told) = home.run("run x -- printenv LEASEHOLD_TTL_MS LEASEHOLD_OWNER");
    assert_eq!((code, out.as_str()), (0, "300000\nfleet-7\n"), "{told}");
    let (_, out, told) = home.run("elect --once x -- printenv LEASEHOLD_TTL_MS LEASEHOLD_OWNER");
    assert_eq!(out, "300000\nfleet-7\n", "{told}");
    let (_, out, told) = home.run("run --ttl 1m --owner me x -- printenv LEASEHOLD_TTL_MS LEASEHOLD_OWNER");
    assert_eq!(out, "60000\nme\n", "{told}");
    assert_eq!(home.run("lock y --ttl 1m").0, 0);
    assert_eq!(inspected(&home, "y")["holders"][0]["owner"], "fleet-7");
    // A nearer file has a setting of its own, and the others come from further away.
    home.write("leasehold.toml", "ttl = \"2m\"");
    let (_, out, told) = home.run("run x -- printenv LEASEHOLD_TTL_MS LEASEHOLD_OWNER");
    assert_eq!(out, "120000\nfleet-7\n", "{told}");
    // The password is for the store of its file alone.
    let (code, _, told) = home.run(&format!("ls --store {}", server.url()));
    assert!(code == 69 && told.contains("it wants a password"), "{told}");
    let (code, _, told) = said(home.leasehold().arg("ls").env("LEASEHOLD_PASSWORD", "wrong"));
    assert!(code == 69 && told.contains("check user and password"), "the environment comes first: {told}");
    for (setting, why) in [
        ("ttl = \"never\"", "line 1: write a number with ms, s"),
        ("ttl = 30", "line 1: invalid type"),
        ("owner = \"\"", "a label has at least one character"),
        ("tll = \"1m\"", "the settings are store, password_file, ttl and owner"),
        ("store = \"redis://127.0.0.1:1\"\npassword_file = \"nowhere\"", "could not be read from `nowhere`"),
    ] {
        home.write("leasehold.toml", setting);
        let (code, _, told) = home.run("run x -- true");
        assert_eq!(code, 78, "{setting}: {told}");
        assert!(told.contains(why), "{setting}: {told}");
    }
    // Where the store is named, a file that cannot be used does no harm.
    home.write("leasehold.toml", "tll = \"1m\"");
    let (code, out, told) =
        home.call(["run", "--store", &format!("file:{}/s", home.path().display()), "x", "--", "echo", "ran"]);
    assert_eq!((code, out.as_str()), (0, "ran\n"), "{told}");
    assert!(told.contains("unknown field `tll`"), "{told}");
}

#[test]
fn a_nested_command_that_asks_for_a_name_of_any_ancestor_is_warned() {
    let home = Home::new();
    let leasehold = assert_cmd::cargo::cargo_bin("leasehold").display().to_string();
    let nested = |outer: &str, inner: &str, ask: &str| {
        let line = format!("{leasehold} run -q {inner} -c '{leasehold} {ask}'");
        let mut command = home.leasehold();
        command.args(["run", "-q"]).args(outer.split_whitespace()).args(["-c", &line]);
        said(&mut command).2
    };
    let warning = "is held by a command that this one was started from";
    for (outer, inner, ask) in [
        ("a", "b", "run -w 100ms a -- true"),
        ("a", "b", "run -w 100ms b -- true"),
        ("a --also c", "b", "run -w 100ms c -- true"),
        ("a", "b", "run -w 100ms d --also a -- true"),
        ("a", "b", "run -s -w 100ms a -- true"),
        ("-s a", "b", "run -w 100ms a -- true"),
        ("a", "b", "lock -w 100ms a --ttl 1m"),
    ] {
        let told = nested(outer, inner, ask);
        assert!(told.contains(warning), "{outer}, {inner}, {ask}: {told}");
    }
    for (outer, inner, ask) in [
        ("a", "b", "run -w 100ms c -- true"),
        ("-s a", "b", "run -s -w 100ms a -- true"),
        ("--permits 2 a", "b", "run --permits 2 -w 100ms a -- true"),
        ("a", "b", "run -n a -- true"),
        ("a", "b", "run --skip a -- true"),
    ] {
        let told = nested(outer, inner, ask);
        assert!(!told.contains(warning), "{outer}, {inner}, {ask}: {told}");
    }
    // One that is gone holds nothing.
    let gone = std::process::Command::new("true").spawn().map(|mut it| (it.id(), it.wait())).unwrap().0;
    let held = format!("x:{gone} a");
    let (code, _, told) = said(home.leasehold().args(["run", "a", "--", "true"]).env("LEASEHOLD_HELD", held));
    assert_eq!((code, told.as_str()), (0, ""));
}

#[test]
fn ls_watch_goes_on_until_it_is_interrupted() {
    let home = Home::new();
    for signal in [Signal::INT, Signal::TERM] {
        let mut watching = home.start(["ls", "--watch=100ms"]);
        watching.line_that_is("nothing is held");
        let holder = holder(&home);
        until(|| watching.line().starts_with("x     anna"), "the name to be listed");
        assert_eq!(holder.end().0, 0);
        watching.line_that_is("nothing is held");
        watching.signal(signal);
        let (code, _, told) = watching.end();
        assert_eq!((code, told.as_str()), (0, ""));
    }
    // A prefix is not taken for how often.
    let mut watching = home.start(["ls", "--watch", "orders:", "--output", "json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&watching.line()).unwrap(),
        json!({ "names": [], "truncated": false })
    );
    let again = watching.line();
    assert_eq!(
        serde_json::from_str::<Value>(&again).unwrap(),
        json!({ "names": [], "truncated": false }),
        "one line each time"
    );
    watching.signal(Signal::INT);
    assert_eq!(watching.end().0, 0);
    let (code, _, told) = home.run("ls --watch=1ms");
    assert!(code == 64 && told.contains("at least 100ms"), "{told}");
}

#[test]
fn ls_watch_refuses_a_duration_in_the_place_of_the_prefix() {
    let home = Home::new();
    for line in ["ls --watch 5s", "ls 5s --watch"] {
        let (code, out, told) = home.run(line);
        assert_eq!((code, out.as_str()), (64, ""), "{told}");
        assert!(told.contains("write `--watch=5s`"), "{told}");
    }
    // With `=` it is clear which is which.
    let mut watching = home.start(["ls", "--watch=100ms", "5s"]);
    watching.line_that_is("nothing is held");
}

#[test]
fn ls_watch_says_that_there_are_more_names() {
    let home = Home::new();
    for name in ["a", "b", "c"] {
        assert_eq!(home.call(["lock", name, "--ttl", "1h", "--owner", "anna"]).0, 0);
    }
    let mut watching = home.start(["ls", "--watch=100ms", "--limit", "2"]);
    for _ in 0..2 {
        watching.line_that_is("there are more names; raise --limit");
    }
    let mut all = home.start(["ls", "--watch=100ms", "--limit", "3"]);
    until(|| all.line().starts_with("c "), "the last name to be listed");
    assert_eq!(all.line(), "", "no notice");
    let mut terminal = Terminal::open(&home);
    // More names than rows: the notice is not cut off.
    terminal.enter("stty rows 3; leasehold ls --watch=100ms --limit 2");
    terminal.see("there are more names; raise --limit");
    terminal.press("\x03");
    terminal.see_prompt();
}

#[test]
fn ls_watch_is_redrawn_in_place_at_a_terminal_and_ends_with_ctrl_c() {
    let home = Home::new();
    let _holder = holder(&home);
    let mut terminal = Terminal::open(&home);
    terminal.enter("leasehold ls --watch=100ms");
    for _ in 0..2 {
        terminal.see("\x1b[H");
        terminal.see("Ctrl-C ends");
        terminal.see("NAME");
        terminal.see("anna");
        terminal.see("\x1b[J");
    }
    terminal.press("\x03");
    terminal.see_prompt();
    assert_eq!(terminal.code(), 0);
}

#[test]
fn ls_watch_survives_a_store_that_is_away_for_a_while() {
    let server = Server::start(Kind::Redis).unwrap();
    let home = Home::new();
    let mut watching = home.start_with([], |it| {
        it.args(["ls", "--watch=100ms", "--store", &server.url()]);
    });
    let lines = stderr_of(&mut watching);
    watching.line_that_is("nothing is held");
    server.kill().unwrap();
    assert!(next(&lines).contains("the redis store gave no answer"));
    server.restart().unwrap();
    let _holder =
        home.start(["run", "--store", &server.url(), "--owner", "anna", "x", "--", "sleep", "1000"]);
    until(|| watching.line().starts_with("x     anna"), "the name to be listed");
    watching.signal(Signal::INT);
    assert_eq!(watching.end().0, 0);
}
