//! Real servers: started, stopped, killed, made to stand still, started again; and none outlives its test.

use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{A_WHILE, SOON, on_each, soon};
use leasehold_lab::{Authority, Client, Error, Kind, Reply, Server, Setup};

const ROLE: &str = "LEASEHOLD_LAB_ROLE";

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_server_answers_over_tcp_and_through_its_socket() {
    on_each(|server| {
        let mut tcp = Client::tcp(server.addr()).unwrap();
        assert!(tcp.command(&["SET", "a", "1"]).unwrap().is_ok());
        let mut unix = Client::unix(&server.socket()).unwrap();
        assert_eq!(unix.command(&["GET", "a"]).unwrap().text(), Some("1"));
        assert_eq!(server.command(&["INCR", "a"]).unwrap(), Reply::Int(2));
        assert_eq!(server.command(&["GET", "b"]).unwrap(), Reply::Nil);
        assert!(server.command(&["NONSENSE"]).unwrap().error().unwrap().starts_with("ERR unknown command"));
        assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.addr().port()));
    });
}

#[test]
fn each_kind_is_the_server_that_it_says() {
    for (kind, name, version) in
        [(Kind::Redis, "redis_version", "7."), (Kind::Valkey, "valkey_version", "9.")]
    {
        let server = Server::start(kind).unwrap();
        let info = server.info("server").unwrap();
        assert!(info[name].starts_with(version), "{kind:?}: {}", info[name]);
        assert_eq!(info["process_id"], server.pid().unwrap().to_string());
        assert_eq!(server.kind(), kind);
    }
}

#[test]
fn the_commands_of_clients_are_counted_exactly() {
    on_each(|server| {
        let mut client = Client::tcp(server.addr()).unwrap();
        server.forget_calls().unwrap();
        for _ in 0..7 {
            client.command(&["INCR", "n"]).unwrap();
        }
        client.command(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "n"]).unwrap();
        let calls = server.calls().unwrap();
        assert_eq!((calls["incr"], calls["eval"], calls["get"]), (7, 1, 1), "{calls:?}");
        assert_eq!(calls.get("auth"), None, "asking costs a command and no more: {calls:?}");
    });
}

#[test]
fn several_servers_run_beside_each_other() {
    let servers: Vec<Server> =
        [Kind::ALL, Kind::ALL].concat().into_iter().map(|kind| Server::start(kind).unwrap()).collect();
    for (number, server) in servers.iter().enumerate() {
        server.command(&["SET", "who", &number.to_string()]).unwrap();
    }
    for (number, server) in servers.iter().enumerate() {
        let mut client = Client::tcp(server.addr()).unwrap();
        assert_eq!(client.command(&["GET", "who"]).unwrap().text(), Some(number.to_string().as_str()));
    }
}

#[test]
fn a_restart_keeps_address_and_directory_and_only_what_was_written_down() {
    for kind in Kind::ALL {
        for (setup, kept) in [(Setup::new(kind), None), (Setup::new(kind).durable(), Some("kept"))] {
            let server = setup.start().unwrap();
            for end in [Server::stop, Server::kill, |_: &Server| Ok(())] {
                let (addr, pid) = (server.addr(), server.pid().unwrap());
                server.command(&["SET", "a", "kept"]).unwrap();
                end(&server).unwrap();
                server.restart().unwrap();
                assert_eq!(server.command(&["GET", "a"]).unwrap().text(), kept, "{kind:?}");
                assert_eq!(server.addr(), addr);
                assert_ne!(server.pid().unwrap(), pid);
                assert!(Client::tcp(addr).unwrap().command(&["PING"]).is_ok());
            }
        }
    }
}

#[test]
fn a_restart_waits_for_a_port_that_somebody_has_for_a_moment() {
    on_each(|server| {
        server.kill().unwrap();
        let somebody = std::net::TcpListener::bind(server.addr()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                soon("it has tried in vain", || server.log().contains("Address already in use"));
                drop(somebody);
            });
            server.restart().unwrap();
        });
        assert!(Client::tcp(server.addr()).unwrap().command(&["PING"]).is_ok());
    });
}

#[test]
fn a_server_that_was_ended_does_not_answer() {
    on_each(|server| {
        for end in [Server::stop, Server::kill] {
            let pid = server.pid().unwrap();
            let mut client = Client::tcp(server.addr()).unwrap();
            end(server).unwrap();
            assert!(!is_alive(pid));
            assert_eq!(server.pid(), None);
            assert!(client.command(&["PING"]).is_err());
            assert_eq!(Client::tcp(server.addr()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
            assert!(matches!(server.command(&["PING"]), Err(Error::NotRunning)));
            assert!(matches!(end(server), Err(Error::NotRunning)));
            assert!(matches!(server.pause(), Err(Error::NotRunning)));
            server.restart().unwrap();
        }
    });
}

#[test]
fn a_paused_server_answers_later() {
    on_each(|server| {
        let mut client = Client::tcp(server.addr()).unwrap();
        server.pause().unwrap();
        client.send(&Client::encoded(&["INCR", "n"])).unwrap();
        client.patience(A_WHILE).unwrap();
        assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::TimedOut);
        server.resume().unwrap();
        client.patience(SOON).unwrap();
        assert_eq!(client.receive().unwrap(), Reply::Int(1));

        // One that stands still can be ended all the same, in either way.
        server.pause().unwrap();
        server.stop().unwrap();
        server.restart().unwrap();
        server.pause().unwrap();
        server.kill().unwrap();
    });
}

#[test]
fn a_paused_server_can_be_resumed_while_somebody_asks_it() {
    on_each(|server| {
        server.pause().unwrap();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| server.command(&["INCR", "n"]));
            std::thread::sleep(A_WHILE);
            server.resume().unwrap();
            assert_eq!(asked.join().unwrap().unwrap(), Reply::Int(1));
        });
    });
}

#[test]
fn rules_of_access_bind_clients_and_not_the_lab() {
    for kind in Kind::ALL {
        let setup = Setup::new(kind).password("secret").without("FLUSHALL");
        let server = setup.user("alice", "on >wonder ~lock:* +@all -eval").start().unwrap();
        let mut client = Client::tcp(server.addr()).unwrap();
        let mut refused = |args: &[&str]| client.command(args).unwrap().error().unwrap_or("no").to_owned();
        assert!(refused(&["GET", "lock:a"]).starts_with("NOAUTH"));
        assert!(refused(&["AUTH", "wrong"]).starts_with("WRONGPASS"));
        assert_eq!(refused(&["AUTH", "secret"]), "no");
        assert_eq!(refused(&["EVAL", "return 1", "0"]), "no");
        assert_eq!(refused(&["AUTH", "alice", "wonder"]), "no");
        assert_eq!(refused(&["SET", "lock:a", "1"]), "no");
        assert!(refused(&["SET", "other", "1"]).starts_with("NOPERM"));
        assert!(refused(&["EVAL", "return 1", "0"]).starts_with("NOPERM"));
        assert!(refused(&["FLUSHALL"]).starts_with("ERR unknown command"));
        assert_eq!(server.command(&["EVAL", "return 1", "0"]).unwrap(), Reply::Int(1));
        server.restart().unwrap();
        assert!(server.command(&["CONFIG", "SET", "maxclients", "100"]).unwrap().is_ok());
    }
}

#[test]
fn what_is_configured_is_in_force() {
    for kind in Kind::ALL {
        let server = Setup::new(kind).memory(64 << 20, "volatile-ttl").debug_commands().start().unwrap();
        assert_eq!(server.info("memory").unwrap()["maxmemory_policy"], "volatile-ttl");
        assert!(server.command(&["DEBUG", "SLEEP", "0"]).unwrap().is_ok());
        let plain = Server::start(kind).unwrap();
        assert!(plain.command(&["DEBUG", "SLEEP", "0"]).unwrap().error().is_some());
    }
}

#[test]
fn a_replica_follows_its_master() {
    for kind in Kind::ALL {
        // The password shows that a replica gets in by itself.
        let master = Setup::new(kind).password("secret").start().unwrap();
        let replica = Setup::new(kind).replica_of(&master).start().unwrap();
        soon("the link is up", || replica.info("replication").unwrap()["master_link_status"] == "up");
        master.command(&["SET", "a", "1"]).unwrap();
        soon("the write is over there", || replica.command(&["GET", "a"]).unwrap().text() == Some("1"));
        assert!(replica.command(&["SET", "a", "2"]).unwrap().error().unwrap().starts_with("READONLY"));
    }
}

#[test]
fn the_lab_gets_in_again_when_its_connection_was_closed() {
    on_each(|server| {
        server.command(&["SET", "a", "1"]).unwrap();
        let mut client = Client::tcp(server.addr()).unwrap();
        assert_eq!(client.command(&["CLIENT", "KILL", "USER", "lab"]).unwrap(), Reply::Int(1));
        assert_eq!(server.command(&["GET", "a"]).unwrap().text(), Some("1"));
    });
}

#[test]
fn a_server_that_does_not_start_shows_its_log() {
    for kind in Kind::ALL {
        let error = Setup::new(kind).line("no-such-setting yes").start().unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::NotStarted { .. }), "{text}");
        assert!(text.contains("no-such-setting"), "{text}");
    }
}

#[test]
fn redis_speaks_tls_on_a_second_port() {
    let plain = Server::start(Kind::Redis).unwrap();
    assert_eq!(plain.tls_addr(), None);
    let authority = Authority::new().unwrap();
    let tls = authority.server(&["127.0.0.1"]).unwrap();
    let server = Setup::new(Kind::Redis).tls(tls.clone()).start().unwrap();
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-verify_return_error", "-CAfile"])
        .arg(&tls.authority)
        .args(["-connect", &server.tls_addr().unwrap().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(client.stdin.as_mut().unwrap(), b"PING\r\n").unwrap();
    let mut answer = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(answer, "+PONG\r\n");
}

#[test]
fn nothing_is_left_of_a_server_that_was_dropped() {
    on_each(|server| {
        let other = Server::start(server.kind()).unwrap();
        let (pid, folder) = (other.pid().unwrap(), other.folder().to_owned());
        assert!(folder.join("log").exists() && is_alive(pid));
        drop(other);
        assert!(!folder.exists() && !is_alive(pid));
    });
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    for kind in Kind::ALL {
        let server = std::thread::spawn(move || Server::start(kind).unwrap()).join().unwrap();
        std::thread::sleep(A_WHILE);
        assert_eq!(server.command(&["PING"]).unwrap().text(), Some("PONG"));
    }
}

/// Not a test but a process of one: it starts a server of each kind and waits to be killed.
#[test]
fn parent() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let servers = Kind::ALL.map(|kind| Server::start(kind).unwrap());
    servers[1].pause().unwrap();
    for server in &servers {
        println!("\n>> {} {}", server.pid().unwrap(), server.folder().display());
    }
    println!("\n>> ready");
    std::thread::sleep(SOON * 3);
}

#[test]
fn servers_die_with_a_test_that_is_killed() {
    // The test harness knows a test by its path without the crate.
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::parent"), "--nocapture"])
        .env(ROLE, "parent")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said = lines.filter_map(|line| line.strip_prefix(">> ").map(str::to_owned));
    let servers: Vec<(u32, PathBuf)> = said
        .take_while(|line| line != "ready")
        .map(|line| line.split_once(' ').map(|(pid, folder)| (pid.parse().unwrap(), folder.into())).unwrap())
        .collect();
    assert_eq!(servers.len(), 2);
    assert!(servers.iter().all(|(pid, _)| is_alive(*pid)));
    parent.kill().unwrap();
    parent.wait().unwrap();
    for (pid, folder) in servers {
        // Dead and not yet waited for by whoever inherited it is dead enough.
        let state =
            || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_else(|_| ") Z".to_owned());
        soon("a server dies with its test", || state().rsplit_once(") ").unwrap().1.starts_with('Z'));
        // Nobody is left to do it.
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn servers_can_be_used_where_the_clock_of_a_test_stands_still() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        tokio::time::sleep(SOON).await;
        assert_eq!(server.command(&["PING"]).unwrap().text(), Some("PONG"));
        server.kill().unwrap();
        server.restart().unwrap();
    }
}
