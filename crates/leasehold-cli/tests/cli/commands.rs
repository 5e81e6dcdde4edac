//! The commands as a user meets them: what they print, where, and how they end.

use std::os::unix::fs::PermissionsExt;

use crate::common::{Home, said};
use assert_cmd::Command;
use leasehold_lab::{Kind, Server};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_script_locks_in_one_process_extends_in_another_and_unlocks_in_a_third() {
    let home = Home::new();
    let (code, token, told) = home.run("lock nightly --ttl 1h");
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("nightly is held for 59 min with fence"), "{told}");
    let token = token.trim();
    assert_eq!(token.split('@').next().unwrap().len(), 32, "the token alone is on standard output");

    let (code, held, _) = home.run("inspect nightly --output json");
    assert_eq!(code, 75, "held");
    assert!(!held.contains(&token[..32]), "the secret is not shown");
    let before = json(&held)["holders"][0]["remaining_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&before));

    assert_eq!(
        said(home.leasehold().args(["extend", "nightly", "--ttl", "10h"]).env("LEASEHOLD_TOKEN", token)).0,
        0
    );
    let (_, held, _) = home.run("inspect nightly --output json");
    assert!(json(&held)["holders"][0]["remaining_ms"].as_u64().unwrap() > 35_000_000, "{held}");

    let (code, _, told) = home.run("lock nightly --ttl 5 -n");
    assert_eq!(code, 75);
    assert!(told.contains("`nightly` is held by") && told.contains("for another 10 h"), "{told}");
    assert_eq!(home.run("lock nightly --ttl 5 -w 0.1 -E 3").0, 3, "as it was asked to");

    let unlocked = said(
        home.leasehold().args(["unlock", "nightly", "--token-file", "-"]).write_stdin(format!("{token}\n")),
    );
    assert_eq!(unlocked, (0, String::new(), String::new()));
    let again = said(home.leasehold().args(["unlock", "nightly"]).env("LEASEHOLD_TOKEN", token));
    assert_eq!(again.0, 79);
    assert!(again.2.contains("`nightly` was lost") && again.2.contains("roll back"), "{}", again.2);
    assert_eq!(home.run("inspect nightly"), (0, "nightly is free\n".to_owned(), String::new()));
}

#[test]
fn what_lock_prints_as_json_is_what_extend_and_unlock_take() {
    let home = Home::new();
    let (code, told, prose) = home.run("lock x --ttl 60 --owner deploy --output json");
    assert_eq!((code, prose.as_str()), (0, ""), "JSON alone");
    let lease = json(&told);
    assert!(lease["fence"].as_u64().unwrap() > 0 && lease["remaining_ms"].as_u64().unwrap() > 50_000);
    home.write("lease.json", &told);
    let (code, extended, _) = home.run("extend x --ttl 90 --token-file lease.json --output json");
    assert_eq!(code, 0);
    assert!(json(&extended)["remaining_ms"].as_u64().unwrap() > 80_000);
    // The fence is proven too: with another one it is somebody else's.
    home.write("stale.json", &told.replace(&lease["fence"].to_string(), "7"));
    assert_eq!(home.run("extend x --ttl 90 --token-file stale.json").0, 79);
    let (code, listed, _) = home.run("ls --output json");
    assert_eq!((code, json(&listed)["names"][0]["holders"][0]["owner"].as_str()), (0, Some("deploy")));
    assert_eq!(
        home.run("unlock x --token-file lease.json --output json"),
        (0, "{\"name\":\"x\",\"released\":true}\n".to_owned(), String::new())
    );
}

#[test]
fn names_are_listed_in_columns_and_by_prefix() {
    let home = Home::new();
    assert_eq!(home.run("ls"), (0, String::new(), String::new()), "nothing is nothing");
    assert_eq!(
        home.run("ls --output json"),
        (0, "{\"names\":[],\"truncated\":false}\n".to_owned(), String::new())
    );
    for name in ["orders:1", "orders:2", "bills:1"] {
        assert_eq!(home.run(&format!("lock {name} --ttl 1h --owner me -q")).0, 0);
    }
    let (_, table, _) = home.run("ls");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(lines[0].starts_with("NAME      HELD BY  HELD FOR  LEFT    FENCE"), "{table}");
    assert!(lines[1].starts_with("bills:1   me       ") && lines[1].contains("  60 min  1"), "{table}");
    let (_, some, _) = home.run("ls orders: --limit 1 --output json");
    let some = &json(&some)["names"];
    assert_eq!((some.as_array().unwrap().len(), some[0]["name"].as_str()), (1, Some("orders:1")));
}

#[test]
fn an_eviction_asks_and_takes_the_lock() {
    let home = Home::new();
    assert_eq!(home.run("lock x --ttl 60 --owner me -q").0, 0);
    let (code, _, told) = home.run("evict x");
    assert_eq!(code, 64, "nobody is there to be asked");
    assert!(told.contains("say --yes"), "{told}");
    assert_eq!(home.run("inspect x").0, 75, "and nothing happened");
    assert_eq!(home.run("evict x --yes"), (0, "x was taken from me\n".to_owned(), String::new()));
    assert_eq!(
        home.run("evict x --yes --output json"),
        (0, "{\"evicted\":[],\"name\":\"x\"}\n".to_owned(), String::new())
    );
}

#[test]
fn an_adoption_asks_and_gives_an_end_to_what_has_none() {
    let (home, server) = (Home::new(), Server::start(Kind::Redis).unwrap());
    let run = |line: &str| home.run(&format!("--store {} {line}", server.url()));
    server.command(&["SET", "lock:x", "theirs"]).unwrap();
    let endless = "x is held by another library, without an expiry; `leasehold adopt` gives it one\n";
    assert_eq!(run("inspect x"), (75, endless.to_owned(), String::new()));
    let (code, _, told) = run("run -n x -- true");
    assert!(code == 75 && told.contains("give it an end with `leasehold adopt`"), "{told}");
    let (_, _, told) = run("run -w 2s x -- true");
    assert!(
        told.contains("held by another library, without an expiry; `leasehold adopt` gives it one"),
        "{told}"
    );
    let (code, _, told) = run("adopt x --ttl 1m");
    assert!(code == 64 && told.contains("say --yes"), "{told}");
    assert_eq!(server.command(&["PTTL", "lock:x"]).unwrap().int(), Some(-1), "and nothing happened");
    let adopted = "x had no end; it is free in 60 s at the latest\n";
    assert_eq!(run("adopt x --ttl 1m --yes"), (0, adopted.to_owned(), String::new()));
    let (code, told, _) = run("adopt x --ttl 10m --yes");
    assert!(code == 0 && told.starts_with("x is held by another library for another "), "{told}");
    assert!(told.ends_with("unless renewed, and was left as it is\n"), "{told}");
    assert_eq!(run("adopt y --ttl 1m --yes"), (0, "y was not held\n".to_owned(), String::new()));
    let told = "{\"adopted\":false,\"holder\":null,\"name\":\"y\",\"remaining_ms\":null}\n";
    assert_eq!(run("adopt y --ttl 1m --yes --output json"), (0, told.to_owned(), String::new()));
    server.command(&["LPUSH", "lock:z", "a"]).unwrap();
    let (code, _, told) = run("adopt z --ttl 1m --yes");
    assert!(code == 69 && told.contains("is of type list, which is no lock"), "{told}");
    let (code, _, told) = home.run("adopt x --ttl 1m --yes");
    assert!(code == 69 && told.contains("every lock of it ends by itself"), "{told}");
}

#[test]
fn the_nearest_setting_decides_which_store_it_is() {
    let home = Home::new();
    let store = |file: &str| format!("store = \"file:{}/{file}\"\n", home.path().display());
    let used = |command: &mut Command| -> Vec<String> {
        assert_eq!(said(command.args(["run", "x", "--", "true"])).0, 0);
        let mut made: Vec<String> = ["flag", "variable", "near", "user", ".local/state/leasehold"]
            .into_iter()
            .filter(|made| home.path().join(made).exists())
            .map(str::to_owned)
            .collect();
        made.iter().for_each(|made| std::fs::remove_dir_all(home.path().join(made)).unwrap());
        made.sort();
        made
    };
    assert_eq!(used(&mut home.leasehold()), [".local/state/leasehold"]);
    home.write(".config/leasehold/config.toml", &store("user"));
    assert_eq!(used(&mut home.leasehold()), ["user"]);
    home.write("leasehold.toml", "# nothing is said here\n");
    assert_eq!(used(&mut home.leasehold()), ["user"]);
    home.write("leasehold.toml", &store("near"));
    assert_eq!(used(&mut home.leasehold()), ["near"]);
    let url = |file: &str| format!("file:{}/{file}", home.path().display());
    assert_eq!(used(home.leasehold().env("LEASEHOLD_STORE", url("variable"))), ["variable"]);
    assert_eq!(used(home.leasehold().env("LEASEHOLD_STORE", "")), ["near"], "empty is not set");
    assert_eq!(
        used(home.leasehold().env("LEASEHOLD_STORE", url("variable")).arg("--store").arg(url("flag"))),
        ["flag"]
    );
    home.write("other/leasehold/config.toml", &store("near"));
    std::fs::remove_file(home.path().join("leasehold.toml")).unwrap();
    assert_eq!(used(home.leasehold().env("XDG_CONFIG_HOME", home.path().join("other"))), ["near"]);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_right_code_and_says_why() {
    let home = Home::new();
    home.write("token", "not a token");
    for (line, code, why) in [
        ("", 64, "Usage: leasehold"),
        ("frobnicate", 64, "unrecognized subcommand 'frobnicate'"),
        ("ls --frobnicate", 64, "unexpected argument '--frobnicate'"),
        ("lock x", 64, "--ttl <DUR>"),
        ("lock x --ttl 30m1h", 64, "`h` is out of order"),
        ("lock x --ttl never", 64, "write a number with ms, s, m, h, d or w"),
        ("lock x --ttl 1ms", 64, "a TTL lies between 10 ms and 366 days"),
        ("lock x --ttl 9999d", 64, "at most 366d"),
        ("lock x --ttl 5 -n -w 3", 64, "cannot be used with"),
        ("lock {x} --ttl 5", 64, "a name has no braces"),
        ("lock a/../b --ttl 5", 64, "cannot stand between slashes"),
        ("unlock x", 64, "LEASEHOLD_TOKEN or with --token-file"),
        ("unlock x --token-file none", 64, "`none`: No such file"),
        ("unlock x --token-file token", 64, "a token is 32 hex digits"),
        ("ls --store nowhere", 64, "it has no scheme"),
        ("ls --store gopher:x", 64, "no such store in this build"),
        ("run x --store file:/proc/nowhere -- true", 69, "/proc/nowhere"),
        ("ls --output yaml", 64, "possible values: text, json"),
        ("completions tcsh", 64, "possible values: bash"),
        ("man /nowhere/at/all", 64, "/nowhere/at/all"),
    ] {
        let (ended, out, told) = home.run(line);
        assert_eq!(ended, code, "`{line}`: {told}");
        assert!(told.contains(why), "`{line}` says: {told}");
        assert_eq!(out, "", "`{line}` answers nothing");
        assert!(!told.contains("panicked"), "{told}");
    }
}

#[test]
fn hostile_configuration_is_refused_by_file_and_line_and_shows_no_secret() {
    let home = Home::new();
    for (text, why) in [
        ("store = 7\n", "line 1: invalid type: integer"),
        ("\n\nstroe = \"file:\"\n", "line 3: unknown field `stroe`"),
        ("store = \"redis://:hunter2@h/\"\nstore = \"x\"\n", "line 2: duplicate key"),
        ("store = \"redis://:hunter2@h/", "line 1: invalid basic string"),
        ("\u{0}", "line 1:"),
        ("store = \"gopher://:hunter2@h/\"\n", "leasehold.toml: invalid store URL `gopher:…`"),
    ] {
        home.write("leasehold.toml", text);
        let (code, out, told) = home.run("ls");
        assert_eq!((code, out.as_str()), (78, ""), "{told}");
        assert!(told.contains("leasehold.toml") && told.contains(why), "{text:?} says: {told}");
        assert!(!told.contains("hunter2"), "{told}");
    }
    std::fs::write(home.path().join("leasehold.toml"), [0xFF, 0xFE, 0x00]).unwrap();
    assert_eq!(home.run("ls").0, 78);
    std::fs::remove_file(home.path().join("leasehold.toml")).unwrap();
    std::fs::create_dir(home.path().join("leasehold.toml")).unwrap();
    let (code, _, told) = home.run("ls");
    assert!(code == 78 && told.contains("cannot be read"), "{told}");
    std::fs::remove_dir(home.path().join("leasehold.toml")).unwrap();
    use std::os::unix::ffi::OsStrExt;
    let garbage = std::ffi::OsStr::from_bytes(&[0xFF, 0xFE]);
    assert_eq!(said(home.leasehold().arg("ls").env("LEASEHOLD_STORE", garbage)).0, 78);
    let (code, _, told) = said(home.leasehold().args([std::ffi::OsStr::new("inspect"), garbage]));
    assert!(code == 64 && told.contains("names are UTF-8"), "{told}");
}

#[test]
fn help_version_completions_and_manual_pages_are_there() {
    let home = Home::new();
    let (code, help, _) = home.run("--help");
    assert_eq!(code, 0);
    for command in
        ["ls", "inspect", "evict", "adopt", "lock", "extend", "unlock", "doctor", "completions", "man"]
    {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is in the help");
        let (code, help, _) = home.run(&format!("{command} --help"));
        assert!(code == 0 && help.contains(&format!("Usage: leasehold {command}")), "{help}");
    }
    assert_eq!(home.run("--version").1, format!("leasehold {}\n", env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, _) = home.run(&format!("completions {shell}"));
        assert!(code == 0 && script.contains("unlock"), "{shell}");
    }
    assert!(home.run("man").1.contains(".TH leasehold 1"));
    assert_eq!(home.run("man .").0, 0);
    assert!(std::fs::read_to_string(home.path().join("leasehold-unlock.1")).unwrap().contains("token"));
}

#[test]
fn an_unknown_parameter_of_a_store_url_is_refused_by_name_and_the_closest_is_suggested() {
    let home = Home::new();
    for (url, why) in [
        ("redis://127.0.0.1:1/?prefx=team:", "`prefx`: did you mean `prefix`? It is one of prefix, timeout,"),
        (
            "redis://127.0.0.1:1/?frobnicate=1",
            "`frobnicate`: there is no such parameter; it is one of prefix",
        ),
        ("redis+unix:///nowhere?usr=alice", "`usr`: did you mean `user`?"),
        ("redis://127.0.0.1:1/?flag", "`flag`: there is no such parameter"),
        ("redlock:a,b,c?max_tll=1", "`max_tll`: did you mean `max_ttl`?"),
        ("file:/nowhere/x?shard=all", "`shard`: did you mean `shared`?"),
    ] {
        let (code, out, told) = home.run(&format!("ls --store {url}"));
        assert_eq!((code, out.as_str()), (64, ""), "{url}: {told}");
        assert!(told.contains(why), "{url}: {told}");
    }
}

#[test]
fn a_file_store_below_the_home_directory_or_the_working_directory_is_where_one_expects_it() {
    let home = Home::new();
    let taken = |store: &str| home.run(&format!("run x --store {store} -- true"));
    assert_eq!(taken("file:~/below/home"), (0, String::new(), String::new()));
    assert!(home.path().join("below/home/locks.db").is_file() && !home.path().join("~").exists());
    let (code, _, told) = taken("file:~alice/x");
    assert!(code == 64 && told.contains("`~USER` is not expanded; write the path"), "{told}");
    // Typed, it is for this directory. In a setting it would be another store for each directory.
    let (code, _, told) = taken("file:here");
    assert!(code == 0 && told.contains("path of the `file:` store is relative"), "{told}");
    assert!(home.path().join("here/locks.db").is_file());
    let (code, _, told) = said(home.leasehold().arg("ls").env("LEASEHOLD_STORE", "file:here"));
    assert!(
        code == 78 && told.contains("LEASEHOLD_STORE: the path of the `file:` store is relative"),
        "{told}"
    );
    home.write("leasehold.toml", "store = \"file:here\"");
    let (code, _, told) = home.run("ls");
    assert!(
        code == 78 && told.contains("leasehold.toml: the path of the `file:` store is relative"),
        "{told}"
    );
}

#[test]
fn a_list_that_is_cut_off_says_so() {
    let home = Home::in_memory();
    for name in ["a", "b", "c"] {
        assert_eq!(home.run(&format!("lock {name} --ttl 1h -q")).0, 0);
    }
    let (code, out, told) = home.run("ls --limit 2");
    assert_eq!((code, out.lines().count()), (0, 3), "a header and two names: {out}");
    assert!(told.contains("there are more than the 2 names shown; raise --limit"), "{told}");
    let listed = |line: &str| {
        let listed = json(&home.run(line).1);
        (listed["names"].as_array().unwrap().len(), listed["truncated"].as_bool().unwrap())
    };
    assert_eq!(listed("ls --limit 2 --output json"), (2, true));
    assert_eq!(listed("ls --limit 3 --output json"), (3, false));
    assert_eq!(home.run("ls --limit 3").2, "");
}

#[test]
fn nobody_is_advised_to_close_a_directory_that_others_need() {
    let home = Home::new();
    for system in ["/", "/etc", "/tmp", "/usr", "/srv", "/var/tmp"] {
        let (code, _, told) = home.run(&format!("run x --store file:{system} -- true"));
        assert!(code == 69 && !told.contains("chmod"), "{told}");
        let own = std::path::Path::new(system).join("leasehold");
        assert!(
            told.contains(&format!("such as `file:{}`", own.display())) || told.contains("user"),
            "{told}"
        );
    }
    // One with a store in it, or a new one.
    let advised = |path: std::path::PathBuf| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (code, _, told) = home.run(&format!("run x --store file:{} -- true", path.display()));
        assert!(code == 69 && told.contains(&format!("`chmod 700 {}`", path.display())), "{told}");
    };
    assert_eq!(home.run("run x -- true").0, 0);
    advised(home.store());
    std::fs::create_dir(home.path().join("new")).unwrap();
    advised(home.path().join("new"));
}

/// Needs root, as the tests of the file store do.
#[test]
fn root_makes_nothing_in_the_home_of_another_user() {
    let home = Home::new();
    std::os::unix::fs::chown(home.path(), Some(4_711), None).unwrap();
    for line in ["run x -- true", "run x --store file:~/x -- true"] {
        let (code, _, told) = home.run(line);
        assert_eq!(code, 69, "{told}");
        assert!(told.contains("user 4711") && told.contains("`sudo -H`"), "{told}");
    }
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "nothing was made");
    let store = format!("--store=file:{}/named", home.path().display());
    assert_eq!(home.run(&format!("run x {store} -- true")).0, 0, "what was named was meant");
}

#[test]
fn a_configuration_file_is_checked_before_it_is_read() {
    let home = Home::new();
    let config = home.path().join("leasehold.toml");
    let refused = |why: &str| {
        let (code, _, told) = home.run("ls");
        assert!(code == 78 && told.contains(&format!("`leasehold.toml`: {why}")), "{told}");
        std::fs::remove_file(&config).unwrap();
    };
    // Nobody writes into it: reading would wait for ever.
    let made = std::process::Command::new("mkfifo").arg(&config).status().unwrap();
    assert!(made.success());
    refused("cannot be read: it is not a regular file");
    // Reading would never end.
    std::os::unix::fs::symlink("/dev/zero", &config).unwrap();
    refused("cannot be read: it is not a regular file");
    home.write("leasehold.toml", &"# long\n".repeat(10_000));
    refused("cannot be read: it is longer than 65536 bytes");
    home.write("leasehold.toml", "store = \"file:/elsewhere\"");
    std::os::unix::fs::chown(&config, Some(4_711), None).unwrap();
    refused("it belongs to another user");
    home.write("mine.toml", "store = \"file:/elsewhere\"");
    std::os::unix::fs::symlink("mine.toml", &config).unwrap();
    std::os::unix::fs::lchown(&config, Some(4_711), None).unwrap();
    refused("it belongs to another user");
    // A link of one's own is followed, as those who keep such files elsewhere have it.
    home.write("mine.toml", "stroe = 1");
    std::os::unix::fs::symlink("mine.toml", &config).unwrap();
    refused("line 1: unknown field `stroe`");
}

#[test]
fn a_token_that_nobody_would_get_is_not_asked_for() {
    let home = Home::in_memory();
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("L", assert_cmd::cargo::cargo_bin("leasehold"));
        said(command.env("HOME", home.path()).current_dir(home.path()))
    };
    let (code, out, told) = shell("exec \"$L\" lock x --ttl 1h >&-");
    assert_eq!((code, out.as_str()), (64, ""), "{told}");
    assert!(told.contains("standard output is closed"), "{told}");
    // As Python's subprocess.DEVNULL: it looks the same.
    let (code, out, told) = shell("exec \"$L\" lock x --ttl 1h 1<> /dev/null");
    assert_eq!((code, out.as_str()), (64, ""), "{told}");
    assert!(
        told.contains("or is /dev/null opened for reading and writing, so the token would be lost"),
        "{told}"
    );
    let (code, _, told) = shell("exec \"$L\" lock x --ttl 1h > /dev/full");
    assert!(code == 125 && told.contains("standard output: No space left"), "{told}");
    assert_eq!(home.run("inspect x").0, 0, "free");
    assert_eq!(shell("exec \"$L\" lock x --ttl 1h -q > /dev/null").0, 0, "who throws it away means it");
}

#[test]
fn an_extension_never_shortens_and_every_store_reports_the_same_time() {
    let home = Home::in_memory();
    let server = Server::start(Kind::Redis).unwrap();
    for store in [format!("file:{}", home.path().join("store").display()), server.url()] {
        let call = |line: &str| {
            let (code, out, told) = home.run(&format!("{line} --store {store} --output json"));
            assert_eq!(code, 0, "{store}: {told}");
            json(&out)
        };
        let lease = call("lock x --ttl 10m");
        home.write("whole.json", &lease.to_string());
        home.write("bare", lease["token"].as_str().unwrap());
        for file in ["whole.json", "bare"] {
            let left =
                call(&format!("extend x --ttl 5s --token-file {file}"))["remaining_ms"].as_u64().unwrap();
            assert!((500_000..=600_000).contains(&left), "{store}: {left}");
        }
        let left = call("extend x --ttl 20m --token-file bare")["remaining_ms"].as_u64().unwrap();
        assert!((1_100_000..=1_200_000).contains(&left), "{store}: {left}");
    }
    assert!(home.run("help extend").1.contains("A lock that lasts longer already is not shortened"));
}

#[test]
fn with_json_output_usage_errors_and_skipped_runs_are_objects_too() {
    let home = Home::in_memory();
    for line in ["--output json frobnicate", "ls --output=json --frobnicate", "lock x --output json"] {
        let (code, out, told) = home.run(line);
        let error = json(&out)["error"].clone();
        assert_eq!((code, error["kind"].as_str(), error["code"].as_u64()), (64, Some("usage"), Some(64)));
        let message = error["message"].as_str().unwrap();
        assert!(
            !message.starts_with("error:") && told.contains(message.lines().next().unwrap()),
            "{message}"
        );
        assert!(!message.contains("For more information") && told.contains("error: "), "{told}");
    }
    // What comes after `--` is the command's.
    assert_eq!(home.run("frobnicate -- --output json").1, "");
    assert_eq!(home.run("lock x --ttl 1h --owner me -q").0, 0);
    let skipped = "{\"holder\":\"me\",\"name\":\"x\",\"skipped\":true}\n";
    for more in ["--skip", "--skip --wait 10ms", "--once-per 1h"] {
        let (code, out, _) = home.run(&format!("--output json run {more} x -- echo ran"));
        assert_eq!((code, out.as_str()), (0, skipped), "{more}");
    }
    assert_eq!(home.run("run --skip x -- echo ran"), (0, String::new(), String::new()));
}

#[test]
fn a_label_or_a_name_of_others_cannot_turn_the_text_around() {
    let home = Home::in_memory();
    let (code, _, told) = home.call(["run", "a\u{202e}b", "--", "true"]);
    assert!(code == 64 && told.contains("invalid name `a\\u{202e}b`"), "{told}");
    let (code, _, told) = home.call(["lock", "x", "--ttl", "1h", "--owner", "a\u{2066}b"]);
    assert!(code == 64 && told.contains("invalid owner label `a\\u{2066}b`"), "{told}");
    // Another program has written them.
    let server = Server::start(Kind::Redis).unwrap();
    let value = format!("{}@eve\u{202e}!#1", "0123456789abcdef".repeat(2));
    server.command(&["SET", "lock:x", &value, "PX", "600000"]).unwrap();
    let url = server.url();
    for args in [["ls", "--store", &url], ["inspect", "x", &format!("--store={url}")]] {
        let (_, out, told) = home.call(args);
        assert!(out.contains("eve\\u{202e}!") && !out.contains('\u{202e}'), "{out}{told}");
    }
    let (code, _, told) = home.run(&format!("run -n x --store {url} -- true"));
    assert!(code == 75 && told.contains("eve\\u{202e}!") && !told.contains('\u{202e}'), "{told}");
    // In a database that an earlier version has written, such a name may be held. It is listed.
    assert_eq!(home.run("lock ab --ttl 1h --owner eve -q").0, 0);
    let database = rusqlite::Connection::open(home.store().join("locks.db")).unwrap();
    database.execute("UPDATE holding SET name = 'a' || char(8238) || 'b'", []).unwrap();
    drop(database);
    let (code, out, told) = home.run("ls");
    assert!(code == 0 && out.contains("a\\u{202e}b") && !out.contains('\u{202e}'), "{out}{told}");
}
