//! The admin port: metrics, health and quotas over HTTP, served by the control executor, with a task per
//! connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use glommio::Task;
use glommio::net::TcpStream;
use glommio::timer::timeout;
use slab::Slab;

use super::control_thread::{Control, explain, figures, post_quotas};
use super::listen;
use crate::control::foreign;
use crate::control::http::{self, Body, Head, Method, Persistence, Received, Response, Route, Status};
use crate::values::limits::QUOTA_POSTS_BYTES_MAX;

/// Maximum number of admin connections open at once. When a further one arrives, the server closes the one that
/// has waited longest for its client to send or take bytes, so that silent clients do not keep others out; or
/// the new one, if weir works on a request of each.
const CONNECTIONS_MAX: usize = 64;
/// The listen backlog of the admin port, in connections that wait to be accepted.
pub(super) const BACKLOG: i32 = 1024;
/// The time limit for each step of an admin request: receiving the head, receiving the body, sending the
/// reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that bytes from a client of the admin port are still read and dropped after its last
/// reply, before the socket is closed.
const LINGER: Duration = Duration::from_secs(2);
/// The size of one read from an admin connection, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;

/// State that all connections to the admin port share.
struct Admin {
    control: Rc<RefCell<Control>>,
    /// Host names that a request's `Host` header may have; any other is answered with 421.
    hosts: Vec<String>,
    places: RefCell<Slab<Place>>,
    /// A counter that grows whenever an admin connection begins to wait for its client; its values order the
    /// connections' waits by age.
    waits: Cell<u64>,
    /// Bytes of memory reserved for the bodies of requests to the admin port that are being received, at most
    /// `QUOTA_POSTS_BYTES_MAX`.
    bodies: Cell<usize>,
}

/// Serves the admin port on a listening socket; `hosts` are the names by which the `Host` header may address
/// it. The listener accepts until the returned task is dropped; connections accepted before that go on until
/// the executor ends.
pub(super) fn serve(control: Rc<RefCell<Control>>, socket: OwnedFd, hosts: Vec<String>) -> Task<()> {
    let listener = listen::for_this_executor(socket);
    let places = RefCell::new(Slab::with_capacity(CONNECTIONS_MAX));
    let admin = Rc::new(Admin { control, hosts, places, waits: Cell::new(0), bodies: Cell::new(0) });
    glommio::spawn_local(async move {
        loop {
            let stream = match listener.accept().await {
                Ok(stream) => stream,
                // Most likely no descriptor is left, and another `accept` would fail at once: a pause keeps
                // this loop from spinning.
                Err(error) => {
                    admin.control.borrow_mut().note_admin_not_accepted(&error.into());
                    glommio::timer::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            if let Some(place) = admin.take_place() {
                let served = Rc::clone(&admin);
                let task = glommio::spawn_local(async move {
                    // A connection that fails concerns its client only.
                    let _ = converse(&served, place, stream).await;
                    let ended = served.places.borrow_mut().remove(place);
                    ended.task.into_iter().for_each(|task| drop(task.detach()));
                });
                admin.places.borrow_mut()[place].task = Some(task);
            }
        }
    })
}

/// One of the `CONNECTIONS_MAX` places for admin connections: the task that serves a connection, and the rank
/// by age of its wait for the client.
struct Place {
    /// The task that serves the connection in this place; dropping it ends the task and closes the socket.
    /// None until the task has been started.
    task: Option<Task<()>>,
    /// The rank of this connection's wait for its client among all waits (a lower number began earlier), or
    /// `None` while weir works on its request.
    waits_since: Option<u64>,
}

impl Admin {
    /// Reserves one of the places for admin connections and returns its index; if all are taken, by closing
    /// the connection that has waited longest for its client. `None` if weir is at work on a request of every
    /// connection.
    fn take_place(&self) -> Option<usize> {
        let mut places = self.places.borrow_mut();
        let evicted = if places.len() < CONNECTIONS_MAX {
            None
        } else {
            let waiting = places.iter().filter_map(|(place, held)| Some((held.waits_since?, place)));
            let (_, longest) = waiting.min()?;
            Some(places.remove(longest))
        };
        let place = places.insert(Place { task: None, waits_since: Some(self.next_wait()) });
        drop(places);
        // Dropping the task closes the socket of the evicted connection.
        drop(evicted);
        Some(place)
    }

    fn next_wait(&self) -> u64 {
        self.waits.set(self.waits.get() + 1);
        self.waits.get()
    }

    /// Runs a step that depends on the client (a read from its socket, or a write to it) within 10 s
    /// (`REQUEST_TIMEOUT`). While the step lasts, the connection (number `place`) counts as waiting and may be
    /// closed in favour of a new one. Returns the step's result; an error also after 10 s.
    async fn waiting<T>(&self, place: usize, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        self.places.borrow_mut()[place].waits_since = Some(self.next_wait());
        let done = within(work).await;
        self.places.borrow_mut()[place].waits_since = None;
        done
    }
}

/// Serves the requests of one admin connection, one after the other, until the client or weir closes it. `place`
/// is the connection's index among the open admin connections. The error (a reply could not be sent) concerns
/// this client only.
async fn converse(admin: &Admin, place: usize, mut stream: TcpStream) -> io::Result<()> {
    let mut received = Vec::new();
    loop {
        let next = admin.waiting(place, head(&mut stream, &mut received)).await;
        let Ok(received_head) = next else { return Ok(()) };
        let (response, method, persistence) = match received_head {
            Received::Partial => return Ok(()),
            Received::Request(head) if !head.host.is_known(&admin.hosts) => {
                (misdirected(admin, &head), head.method, Persistence::Close)
            }
            Received::Request(head) if head.method == Method::Post => {
                received.drain(..head.length);
                let (response, rest) = post(admin, place, &mut stream, &mut received, &head).await;
                let persistence = if rest == Rest::Read { head.persistence } else { Persistence::Close };
                (response, head.method, persistence)
            }
            Received::Request(head) => {
                received.drain(..head.length);
                let control = &admin.control;
                let response = match foreign(&head) {
                    Some(refusal) => refusal,
                    None if head.route == Route::Explain => explain(control, &head).await,
                    None => {
                        let totals = if head.route.needs_figures() { figures(control).await } else { None };
                        control.borrow_mut().page(&head, totals.as_ref())
                    }
                };
                (response, head.method, head.persistence)
            }
            Received::Refused(response) => (response, Method::Get, Persistence::Close),
        };
        let mut out = Vec::new();
        response.write(&mut out, method, persistence);
        admin.waiting(place, stream.write_all(&out)).await?;
        if persistence == Persistence::Close {
            return admin.waiting(place, linger(stream)).await;
        }
    }
}

/// Builds the reply (status 421) to a request whose `Host` header is not a name of this server.
fn misdirected(admin: &Admin, head: &Head) -> Response {
    let problem = head.host.admit(&admin.hosts, "--admin-host").err().unwrap_or_default();
    Response::problem(Status::MisdirectedRequest, &problem, None)
}

/// Reads from an admin connection until the head of a request is complete or refused; `received` has the
/// bytes that were read and not used so far. Returns `Received::Partial` if the client ended its side first.
async fn head(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<Received> {
    loop {
        let found = http::receive(received);
        if found != Received::Partial {
            return Ok(found);
        }
        // The loop is bounded: `receive` refuses a head that grows too long.
        if receive_more(stream, received).await? == 0 {
            return Ok(Received::Partial);
        }
    }
}

async fn receive_more(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = vec![0_u8; CHUNK_BYTES];
    let count = stream.read(&mut chunk).await?;
    received.extend_from_slice(&chunk[..count]);
    Ok(count)
}

/// State of a request's body after the request was handled: read to its end, or not. After an unread body, no
/// other request can follow on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Read,
    Unread,
}

/// Handles a POST of quotas: checks that the client may change quotas and that the body fits in memory,
/// receives the body, and has the quotas checked and put in force. Returns the reply, and whether the body was
/// read. `place` is the index of the connection, `stream` its socket, and `received` its bytes that were read
/// so far.
async fn post(
    admin: &Admin,
    place: usize,
    stream: &mut TcpStream,
    received: &mut Vec<u8>,
    head: &Head,
) -> (Response, Rest) {
    if let Err(refusal) = admin.control.borrow_mut().admit(head) {
        return (refusal, Rest::Unread);
    }
    let bytes = head.body.bytes() as usize;
    let Some(_room) = Room::take(&admin.bodies, bytes) else {
        let detail = "another quota file is being received: send one at a time";
        return (Response::problem(Status::ServiceUnavailable, detail, None), Rest::Unread);
    };
    match admin.waiting(place, body(stream, received, head)).await {
        Ok(body) => (post_quotas(&admin.control, body).await, Rest::Read),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let detail = format!("the body ended before its {bytes} bytes");
            (Response::problem(Status::BadRequest, &detail, None), Rest::Unread)
        }
        Err(_) => {
            let detail = format!("the body did not arrive within {REQUEST_TIMEOUT:?}");
            (Response::problem(Status::RequestTimeout, &detail, None), Rest::Unread)
        }
    }
}

async fn body(stream: &mut TcpStream, received: &mut Vec<u8>, head: &Head) -> io::Result<Vec<u8>> {
    let bytes = head.body.bytes() as usize;
    if matches!(head.body, Body::Waits(_)) && received.len() < bytes {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    while received.len() < bytes {
        if receive_more(stream, received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let next = received.split_off(bytes);
    Ok(std::mem::replace(received, next))
}

/// A reservation of memory for the body of one request to the admin port, released when it is dropped.
struct Room<'a> {
    taken: &'a Cell<usize>,
    bytes: usize,
}

impl<'a> Room<'a> {
    fn take(taken: &'a Cell<usize>, bytes: usize) -> Option<Self> {
        let after = taken.get() + bytes;
        (after <= QUOTA_POSTS_BYTES_MAX).then(|| {
            taken.set(after);
            Self { taken, bytes }
        })
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.taken.set(self.taken.get() - self.bytes);
    }
}

/// Closes an admin connection so that the last reply arrives: ends the sending side, then reads and drops
/// bytes for at most 2 s (`LINGER`). Closing a socket with unread bytes in it would reset the connection and
/// lose the reply.
async fn linger(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write).await.map_err(io::Error::from)?;
    let unread = async {
        let mut discarded = Vec::new();
        while receive_more(&mut stream, &mut discarded).await? > 0 {
            discarded.clear();
        }
        io::Result::Ok(())
    };
    // The result does not matter: nothing more is owed to the client.
    let _ = timeout(LINGER, async move { Ok(unread.await) }).await;
    within(stream.close()).await
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(REQUEST_TIMEOUT, async move { Ok(work.await) }).await.map_err(io::Error::from)?
}
