/* A compiled streaming server of known truth, independent of this project's code: what is the client worth?
 *
 *   cc -O2 -o truth_server truth_server.c && ./truth_server PORT TTFT_MS ITL_MS TRUTH_FILE
 *
 * Answers POST with Server-Sent Events of OpenAI's completions, `max_tokens` of them, the first TTFT_MS after the
 * request was read, each other ITL_MS after the one before it was due. Just before each write it notes
 * CLOCK_MONOTONIC. Ended by SIGTERM, it writes one line a token: request id, number, ns. One thread, epoll.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST 8192
typedef struct {
    char in[65536], id[64];
    int used, wanted, sent, busy;
    long long due;
} Peer;
typedef struct {
    int fds[MOST], head, size;
} Queue; /* due times only grow in each */
typedef struct {
    char id[64];
    int number;
    long long ns;
} Token;

static Peer *peers[MOST];
static Queue first, later;
static Token *truth;
static long tokens, room;
static volatile sig_atomic_t over;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static void stop(int signal) { (void)signal, over = 1; }
static void push(Queue *q, int fd) { q->fds[(q->head + q->size++) % MOST] = fd; }
static int pop(Queue *q) {
    int fd = q->fds[q->head];
    q->head = (q->head + 1) % MOST, q->size--;
    return fd;
}
static void leave(int fd) { close(fd), free(peers[fd]), peers[fd] = NULL; }

static void put(int fd, const char *event, char *out, int *at) {
    (void)fd;
    *at += sprintf(out + *at, "%zx\r\n%s\r\n", strlen(event), event);
}

static void token(int fd, long long itl) {
    Peer *p = peers[fd];
    char out[2048];
    int at = 0, last = ++p->sent == p->wanted;
    if (p->sent == 1)
        at = sprintf(out, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    put(fd, last ? "data: {\"id\":\"c\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\" to\",\"finish_reason\":\"length\"}]}\n\n"
                 : "data: {\"id\":\"c\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\" to\",\"finish_reason\":null}]}\n\n",
        out, &at);
    if (last) put(fd, "data: [DONE]\n\n", out, &at), at += sprintf(out + at, "0\r\n\r\n");
    if (tokens == room) truth = realloc(truth, (room = room ? 2 * room : 1 << 20) * sizeof *truth);
    Token *t = &truth[tokens++];
    strcpy(t->id, p->id), t->number = p->sent - 1, t->ns = now_ns();
    if (write(fd, out, at) != at) { leave(fd); return; }
    if (last) { p->busy = 0; return; }
    p->due += itl;
    push(&later, fd);
}

static void request(int fd, long long ttft) {
    Peer *p = peers[fd];
    p->in[p->used] = 0;
    char *body = strstr(p->in, "\r\n\r\n"), *length = strcasestr(p->in, "content-length:");
    if (!body || (length && p->used < body + 4 - p->in + atoi(length + 15))) return;
    if (!strncmp(p->in, "GET", 3)) { /* the list of models */
        const char *said = "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":\"model\"}]}";
        dprintf(fd, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(said), said);
        p->used = 0;
        return;
    }
    char *id = strcasestr(p->in, "x-request-id:"), *most = strstr(body, "\"max_tokens\":");
    if (id) sscanf(id + 13, " %63[^\r\n]", p->id);
    p->wanted = most ? atoi(most + 13) : 16, p->sent = 0, p->busy = 1, p->used = 0;
    p->due = now_ns() + ttft;
    push(&first, fd);
}

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: truth_server PORT TTFT_MS ITL_MS TRUTH_FILE\n"), 2;
    long long ttft = atof(argv[2]) * 1e6, itl = atof(argv[3]) * 1e6;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1, poll = epoll_create1(0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 4096)) return perror("truth_server"), 1;
    struct epoll_event events[512], e = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &e);
    signal(SIGTERM, stop), signal(SIGPIPE, SIG_IGN);
    puts("ready"), fflush(stdout);
    while (!over) {
        long long now = now_ns(), next = now + 100000000;
        Queue *queues[] = {&first, &later};
        for (int i = 0; i < 2; i++) {
            Queue *q = queues[i];
            while (q->size) {
                int fd = q->fds[q->head];
                if (!peers[fd] || !peers[fd]->busy) { pop(q); continue; }
                if (peers[fd]->due > now) {
                    if (peers[fd]->due < next) next = peers[fd]->due;
                    break;
                }
                token(pop(q), itl);
            }
        }
        long long wait = next - now_ns();
        struct timespec limit = {wait > 0 ? wait / 1000000000 : 0, wait > 0 ? wait % 1000000000 : 0};
        int n = epoll_pwait2(poll, events, 512, &limit, NULL);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (fd >= MOST) { close(fd); continue; }
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    peers[fd] = calloc(1, sizeof(Peer));
                    e.data.fd = fd, epoll_ctl(poll, EPOLL_CTL_ADD, fd, &e);
                }
                continue;
            }
            Peer *p = peers[fd];
            int got = read(fd, p->in + p->used, sizeof p->in - 1 - p->used);
            if (got <= 0) { if (got == 0 || errno != EAGAIN) leave(fd); continue; }
            p->used += got;
            request(fd, ttft);
        }
    }
    FILE *file = fopen(argv[4], "w");
    for (long i = 0; i < tokens; i++) fprintf(file, "%s %d %lld\n", truth[i].id, truth[i].number, truth[i].ns);
    return fclose(file) ? 1 : 0;
}
