//! The bad network: each fault, shown on a real server behind it; and what is counted, counted exactly.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::common::{A_WHILE, SOON, behind_a_proxy, ms, on_each, soon};
use leasehold_lab::{Client, Counts, Cut, Flow, Kind, Proxy, Reply, Server, Toward, Trick};

fn get(server: &Server, key: &str) -> Option<String> {
    server.command(&["GET", key]).unwrap().text().map(str::to_owned)
}

fn encoded(args: &[&str]) -> Vec<u8> {
    Client::encoded(args)
}

/// No answer comes, and no end either.
fn assert_silence(client: &mut Client) {
    client.patience(A_WHILE).unwrap();
    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::TimedOut);
    client.patience(SOON).unwrap();
}

fn assert_works(proxy: &Proxy) {
    let mut client = Client::tcp(proxy.addr()).unwrap();
    assert_eq!(client.command(&["PING"]).unwrap().text(), Some("PONG"));
}

#[test]
fn requests_are_counted_one_by_one_however_they_are_sent() {
    on_each(|server| {
        let proxy = Proxy::to(server.addr()).unwrap();
        assert_eq!(proxy.counts(), Counts::default());
        let (mut one, mut two) = (Client::tcp(proxy.addr()).unwrap(), Client::tcp(proxy.addr()).unwrap());

        // A pipeline of different commands in one piece, one with a request inside a value, and one typed by hand.
        let inside = String::from_utf8(encoded(&["GET", "a"])).unwrap();
        let pipeline =
            [encoded(&["SET", "a", &inside]), encoded(&["get", "a"]), b"PING\r\n\r\n".to_vec()].concat();
        one.send(&pipeline).unwrap();
        assert!(one.receive().unwrap().is_ok());
        assert_eq!(one.receive().unwrap().text(), Some(inside.as_str()));
        assert_eq!(one.receive().unwrap().text(), Some("PONG"));
        // A thousand at once, over many pieces; and one that comes byte by byte.
        let many = encoded(&["INCR", "n"]).repeat(1_000);
        two.send(&many).unwrap();
        for n in 1..=1_000 {
            assert_eq!(two.receive().unwrap(), Reply::Int(n));
        }
        let slow = encoded(&["ECHO", "slow"]);
        for byte in &slow {
            two.send(&[*byte]).unwrap();
        }
        assert_eq!(two.receive().unwrap().text(), Some("slow"));

        let counts = proxy.counts();
        assert_eq!((counts.connections, counts.open), (2, 2));
        assert_eq!((counts.requests, counts.replies), (1_004, 1_004));
        let commands: Vec<(&str, u64)> =
            counts.commands.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        assert_eq!(commands, [("ECHO", 1), ("GET", 1), ("INCR", 1_000), ("PING", 1), ("SET", 1)]);
        assert_eq!(counts.bytes_from_clients as usize, pipeline.len() + many.len() + slow.len());
        assert!(counts.bytes_from_server > 4_000);

        drop((one, two));
        assert!(proxy.until(SOON, |counts| counts.open == 0));
        assert_eq!(proxy.counts().connections, 2);
    });
}

#[test]
fn large_values_pass_unharmed_in_both_directions() {
    behind_a_proxy(|_, proxy, mut client| {
        let large: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        assert!(client.command(&[b"SET", &b"a"[..], &large]).unwrap().is_ok());
        assert_eq!(client.command(&["GET", "a"]).unwrap(), Reply::Bulk(large));
        assert_eq!(proxy.counts().requests, 3);
    });
}

#[test]
fn a_request_is_executed_and_its_answer_lost() {
    behind_a_proxy(|server, proxy, mut client| {
        proxy.arm(Trick::LoseReply);
        assert_eq!(proxy.armed(), 1);
        client.send(&encoded(&["SET", "a", "executed"])).unwrap();
        assert_silence(&mut client);
        assert_eq!((get(server, "a").as_deref(), proxy.armed()), (Some("executed"), 0));

        // The connection is silent and not broken: requests still arrive, and no answer is taken for an earlier one.
        client.send(&encoded(&["SET", "a", "again"])).unwrap();
        soon("the next request arrives", || get(server, "a").as_deref() == Some("again"));
        assert_silence(&mut client);
        assert_works(proxy);
        drop(client);
        assert!(proxy.until(SOON, |counts| counts.open == 0), "{:?}", proxy.counts());
    });
}

#[test]
fn a_request_is_executed_and_the_connection_cut_in_place_of_its_answer() {
    behind_a_proxy(|server, proxy, mut client| {
        for (by, seen) in [(Cut::Reset, ErrorKind::ConnectionReset), (Cut::Finish, ErrorKind::UnexpectedEof)]
        {
            // What was asked before is answered: only the second is hit, since it alone has that command.
            proxy.arm_for("append", Trick::CutReply { after: 0, by });
            client.send(&[encoded(&["ECHO", "before"]), encoded(&["APPEND", "a", "x"])].concat()).unwrap();
            assert_eq!(client.receive().unwrap().text(), Some("before"));
            assert_eq!(client.receive().unwrap_err().kind(), seen);
            client = Client::tcp(proxy.addr()).unwrap();
        }
        assert_eq!(get(server, "a").as_deref(), Some("xx"));
        assert_works(proxy);
    });
}

#[test]
fn an_answer_is_cut_at_any_byte() {
    behind_a_proxy(|server, proxy, _| {
        server.command(&["SET", "a", "value"]).unwrap();
        let whole = b"$5\r\nvalue\r\n".len();
        for after in 0..=whole {
            proxy.arm(Trick::CutReply { after, by: Cut::Finish });
            let mut client = Client::tcp(proxy.addr()).unwrap();
            let answer = client.command(&["GET", "a"]);
            if after < whole {
                assert_eq!(answer.unwrap_err().kind(), ErrorKind::UnexpectedEof, "after {after} bytes");
            } else {
                assert_eq!(answer.unwrap().text(), Some("value"));
                assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
            }
        }
    });
}

#[test]
fn a_request_is_cut_at_any_byte_and_executed_only_if_it_was_whole() {
    behind_a_proxy(|server, proxy, _| {
        let request = encoded(&["INCR", "n"]);
        for after in 0..=request.len() {
            for (by, seen) in
                [(Cut::Reset, ErrorKind::ConnectionReset), (Cut::Finish, ErrorKind::UnexpectedEof)]
            {
                proxy.arm(Trick::CutRequest { after, by });
                let mut client = Client::tcp(proxy.addr()).unwrap();
                client.send(&request).unwrap();
                assert_eq!(client.receive().unwrap_err().kind(), seen, "after {after} bytes");
            }
        }
        soon("the whole ones are executed", || get(server, "n").as_deref() == Some("2"));
    });
}

#[test]
fn a_request_arrives_twice_and_is_answered_once() {
    behind_a_proxy(|server, proxy, mut client| {
        proxy.arm_for("INCR", Trick::Duplicate);
        let pipeline = [encoded(&["ECHO", "before"]), encoded(&["INCR", "n"]), encoded(&["ECHO", "after"])];
        client.send(&pipeline.concat()).unwrap();
        assert_eq!(client.receive().unwrap().text(), Some("before"));
        assert_eq!(client.receive().unwrap(), Reply::Int(1));
        assert_eq!(client.receive().unwrap().text(), Some("after"));
        assert_eq!(get(server, "n").as_deref(), Some("2"));
        assert_eq!(proxy.counts().commands["INCR"], 1, "what clients sent, not what arrived");
        assert_eq!(client.command(&["INCR", "n"]).unwrap(), Reply::Int(3));
    });
}

#[test]
fn an_answer_is_replaced() {
    behind_a_proxy(|server, proxy, mut client| {
        proxy.arm(Trick::Answer(b"-LOADING Redis is loading the dataset in memory\r\n".to_vec()));
        proxy.arm(Trick::Answer(b"HTTP/1.1 400 Bad Request\r\n".to_vec()));
        assert!(client.command(&["SET", "a", "1"]).unwrap().error().unwrap().starts_with("LOADING"));
        assert_eq!(get(server, "a").as_deref(), Some("1"));
        assert_eq!(client.command(&["GET", "a"]).unwrap_err().kind(), ErrorKind::InvalidData);
    });
}

#[test]
fn answers_are_held_back_until_they_are_released() {
    behind_a_proxy(|server, proxy, mut client| {
        proxy.set(Toward::Client, Flow::Hold);
        client.send(&[encoded(&["INCR", "n"]), encoded(&["INCR", "n"])].concat()).unwrap();
        assert!(proxy.until(SOON, |counts| counts.replies == 3));
        assert_eq!(get(server, "n").as_deref(), Some("2"));
        assert_silence(&mut client);
        proxy.set(Toward::Client, Flow::Pass);
        assert_eq!(client.receive().unwrap(), Reply::Int(1));
        assert_eq!(client.receive().unwrap(), Reply::Int(2));
    });
}

#[test]
fn a_request_that_was_held_back_arrives_after_its_client_has_gone() {
    behind_a_proxy(|server, proxy, mut client| {
        proxy.set(Toward::Server, Flow::Hold);
        client.send(&encoded(&["SET", "a", "late"])).unwrap();
        assert!(proxy.until(SOON, |counts| counts.requests == 2));
        drop(client);
        server.command(&["SET", "a", "early"]).unwrap();
        std::thread::sleep(A_WHILE);
        assert_eq!(get(server, "a").as_deref(), Some("early"));
        proxy.set(Toward::Server, Flow::Pass);
        soon("the request arrives", || get(server, "a").as_deref() == Some("late"));
        assert!(proxy.until(SOON, |counts| counts.open == 0));
    });
}

#[test]
fn either_direction_can_be_a_black_hole() {
    behind_a_proxy(|server, proxy, mut client| {
        let mut idle = Client::tcp(proxy.addr()).unwrap();
        assert!(idle.command(&["PING"]).is_ok());
        let set = |value| encoded(&["SET", "a", value]);

        proxy.set(Toward::Client, Flow::Swallow);
        client.send(&set("1")).unwrap();
        soon("requests arrive", || get(server, "a").as_deref() == Some("1"));
        assert_silence(&mut client);

        proxy.set(Toward::Server, Flow::Swallow);
        let mut late = Client::tcp(proxy.addr()).unwrap();
        late.send(&set("2")).unwrap();
        assert!(proxy.until(SOON, |counts| counts.requests == 4), "{:?}", proxy.counts());
        assert_silence(&mut late);

        // Whoever has lost something stays deaf; others have not noticed.
        proxy.heal().unwrap();
        client.send(&set("3")).unwrap();
        soon("requests arrive", || get(server, "a").as_deref() == Some("3"));
        assert_silence(&mut client);
        late.send(&set("4")).unwrap();
        assert_silence(&mut late);
        assert_eq!(idle.command(&["GET", "a"]).unwrap().text(), Some("3"));
        assert_works(proxy);
    });
}

#[test]
fn each_direction_has_its_own_delay() {
    behind_a_proxy(|server, proxy, mut client| {
        for toward in [Toward::Server, Toward::Client] {
            proxy.set(toward, Flow::Delay(A_WHILE));
            let since = Instant::now();
            // Latency, not bandwidth: what is sent one after the other does not wait for each other.
            for _ in 0..20 {
                client.send(&encoded(&["PING"])).unwrap();
            }
            for _ in 0..20 {
                assert_eq!(client.receive().unwrap().text(), Some("PONG"));
            }
            assert!(since.elapsed() >= A_WHILE);
            assert!(since.elapsed() < A_WHILE * 20, "{:?}", since.elapsed());
            proxy.set(toward, Flow::Pass);
        }
        // Under way already, it arrives at once when the network is well again.
        proxy.set(Toward::Server, Flow::Delay(Duration::from_secs(3_600)));
        client.send(&encoded(&["SET", "a", "1"])).unwrap();
        assert!(proxy.until(SOON, |counts| counts.commands.contains_key("SET")));
        proxy.heal().unwrap();
        assert!(client.receive().unwrap().is_ok());
        assert_eq!(get(server, "a").as_deref(), Some("1"));
    });
}

#[test]
fn a_delay_that_varies_keeps_the_order() {
    behind_a_proxy(|_, proxy, mut client| {
        for toward in [Toward::Server, Toward::Client] {
            proxy.set(toward, Flow::Jitter { least: ms(1), most: ms(10), seed: 7 });
        }
        for n in 0..30 {
            client.send(&encoded(&["ECHO", &n.to_string()])).unwrap();
        }
        for n in 0..30 {
            assert_eq!(client.receive().unwrap().text(), Some(n.to_string().as_str()));
        }
    });
}

#[test]
fn every_connection_is_cut_at_once() {
    behind_a_proxy(|server, proxy, client| {
        let mut clients = vec![client, Client::tcp(proxy.addr()).unwrap()];
        for (by, seen) in [(Cut::Reset, ErrorKind::ConnectionReset), (Cut::Finish, ErrorKind::UnexpectedEof)]
        {
            for client in &mut clients {
                assert!(client.command(&["PING"]).is_ok());
            }
            let there = || server.command(&["CLIENT", "LIST"]).unwrap().text().unwrap().lines().count();
            assert_eq!(there(), 3, "two and the lab's");
            proxy.cut(by).unwrap();
            assert_eq!(proxy.counts().open, 0);
            soon("the server has noticed", || there() == 1);
            for client in &mut clients {
                assert_eq!(client.receive().unwrap_err().kind(), seen);
                *client = Client::tcp(proxy.addr()).unwrap();
            }
        }
    });
}

#[test]
fn what_was_held_back_is_gone_when_its_connection_is_cut() {
    behind_a_proxy(|server, proxy, mut client| {
        proxy.set(Toward::Server, Flow::Hold);
        client.send(&encoded(&["SET", "a", "1"])).unwrap();
        assert!(proxy.until(SOON, |counts| counts.requests == 2));
        proxy.cut(Cut::Reset).unwrap();
        proxy.heal().unwrap();
        assert!(client.receive().is_err());
        assert_works(proxy);
        assert_eq!(get(server, "a"), None);
    });
}

#[test]
fn new_connections_are_refused_and_old_ones_stay() {
    behind_a_proxy(|_, proxy, mut client| {
        let addr = proxy.addr();
        for _ in 0..3 {
            proxy.refuse().unwrap();
            assert_eq!(Client::tcp(addr).unwrap_err().kind(), ErrorKind::ConnectionRefused);
            assert!(client.command(&["PING"]).is_ok());
            proxy.accept().unwrap();
            assert_eq!(proxy.addr(), addr);
            assert_works(proxy);
        }
    });
}

#[test]
fn a_server_that_is_killed_and_comes_back_is_found_again() {
    behind_a_proxy(|server, proxy, mut client| {
        server.kill().unwrap();
        assert!(client.command(&["PING"]).is_err());
        assert!(Client::tcp(proxy.addr()).and_then(|mut client| client.command(&["PING"])).is_err());
        server.restart().unwrap();
        assert_works(proxy);
    });
}

/// Messages come between answers, and confirmations in place of them: neither is taken for the answer that a trick is
/// about.
#[test]
fn what_a_server_sends_unasked_is_no_answer() {
    behind_a_proxy(|server, proxy, mut client| {
        assert!(matches!(client.command(&["HELLO", "3"]).unwrap(), Reply::Array(_)));
        proxy.arm_for("INCR", Trick::Duplicate);
        assert!(matches!(client.command(&["SUBSCRIBE", "one", "two"]).unwrap(), Reply::Push(_)));
        assert!(matches!(client.receive().unwrap(), Reply::Push(_)));
        server.command(&["PUBLISH", "one", "news"]).unwrap();
        assert!(matches!(client.receive().unwrap(), Reply::Push(_)));
        assert_eq!(client.command(&["INCR", "n"]).unwrap(), Reply::Int(1));
        assert_eq!(client.command(&["GET", "n"]).unwrap().text(), Some("2"));
        assert_eq!(proxy.counts().replies, 5, "PING, HELLO, INCR twice, GET");

        // The older protocol has one kind of array for all of it.
        let mut client = Client::tcp(proxy.addr()).unwrap();
        assert!(matches!(client.command(&["SUBSCRIBE", "one", "two"]).unwrap(), Reply::Array(_)));
        assert!(matches!(client.receive().unwrap(), Reply::Array(_)));
        proxy.arm_for("PING", Trick::Duplicate);
        server.command(&["PUBLISH", "two", "news"]).unwrap();
        assert!(matches!(client.receive().unwrap(), Reply::Array(_)));
        let pong = Reply::Array(vec![Reply::Bulk(b"pong".to_vec()), Reply::Bulk(Vec::new())]);
        assert_eq!(client.command(&["PING"]).unwrap(), pong);
        server.command(&["PUBLISH", "two", "more"]).unwrap();
        assert!(matches!(client.receive().unwrap(), Reply::Array(news) if news.len() == 3));
    });
}

#[test]
fn what_is_not_understood_passes_as_it_is() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap()).unwrap();
    let mut client = std::net::TcpStream::connect(proxy.addr()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(SOON)).unwrap();
    }
    let hello: Vec<u8> = [0x16, 3, 1].into_iter().chain(0..=255).collect();
    for _ in 0..2 {
        std::io::Write::write_all(&mut client, &hello).unwrap();
        let mut heard = vec![0; hello.len()];
        std::io::Read::read_exact(&mut server, &mut heard).unwrap();
        assert_eq!(heard, hello);
        std::io::Write::write_all(&mut server, &hello).unwrap();
        std::io::Read::read_exact(&mut client, &mut heard).unwrap();
        assert_eq!(heard, hello);
    }
    assert_eq!(proxy.counts().requests, 0);
    assert_eq!(proxy.counts().bytes_from_clients as usize, 2 * hello.len());
}

#[tokio::test(start_paused = true)]
async fn a_proxy_goes_on_where_the_clock_and_the_thread_of_a_test_stand_still() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let proxy = Proxy::to(server.addr()).unwrap();
        proxy.set(Toward::Client, Flow::Delay(ms(5)));
        assert_works(&proxy);
        proxy.cut(Cut::Reset).unwrap();
    }
}
