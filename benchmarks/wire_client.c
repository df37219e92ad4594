/* A client for the figures of the wire protocol, on librdkafka: what it costs a program without an interpreter.
 *
 *   wire_client produce BROKER TOPIC COUNT SIZE BATCH_BYTES LINGER_MS BATCH_MESSAGES TRANSACTION_RECORDS
 *   wire_client consume BROKER TOPIC COUNT
 *   wire_client ask BROKER TOPIC COUNT SIZE          one record at a time, acks=all: microseconds of each answer
 *   wire_client pass BROKER TOPIC COUNT SIZE PER_S   from one client to another: microseconds from send to receipt
 *   wire_client crowd HOST PORT FRAME CONNECTIONS COUNT   the request in a file, from many connections, one each at a time
 *
 * Prints one line: seconds COUNT, or p50 and p99 in microseconds.
 * Build: cc -O2 wire_client.c -o wire_client -lrdkafka -lpthread */
#include <arpa/inet.h>
#include <librdkafka/rdkafka.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
    char why[512];
    if (rd_kafka_conf_set(conf, key, value, why, sizeof why) != RD_KAFKA_CONF_OK) die(key, why);
}

static volatile long delivered, failed;
static double *delays;

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    if (message->err) {
        if (!failed++) fprintf(stderr, "delivery: %s\n", rd_kafka_err2str(message->err));
    } else
        delivered++;
}

static rd_kafka_t *open_client(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char why[512];
    rd_kafka_t *rk = rd_kafka_new(type, conf, why, sizeof why);
    if (!rk) die("rd_kafka_new", why);
    return rk;
}

static rd_kafka_conf_t *configure(const char *broker) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", broker);
    set(conf, "log.connection.close", "false");
    return conf;
}

static rd_kafka_t *producer(const char *broker, const char *linger_ms) {
    rd_kafka_conf_t *conf = configure(broker);
    set(conf, "acks", "all");
    set(conf, "linger.ms", linger_ms);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    return open_client(RD_KAFKA_PRODUCER, conf);
}

static void check(rd_kafka_error_t *error) {
    if (error) die("transaction", rd_kafka_error_string(error));
}

static void produce(char **argv) {
    long count = atol(argv[4]), per_transaction = atol(argv[9]);
    size_t size = atol(argv[5]);
    rd_kafka_conf_t *conf = configure(argv[2]);
    set(conf, "acks", "all");
    set(conf, "batch.size", argv[6]);
    set(conf, "linger.ms", argv[7]);
    set(conf, "batch.num.messages", argv[8]);
    set(conf, "message.max.bytes", "4000000");
    set(conf, "queue.buffering.max.messages", "500000");
    set(conf, "queue.buffering.max.kbytes", "524288");
    if (per_transaction) {
        char id[64];
        snprintf(id, sizeof id, "bench-%f", now_s());
        set(conf, "transactional.id", id);
    }
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *rk = open_client(RD_KAFKA_PRODUCER, conf);
    char *payload = malloc(size);
    srandom(1);
    for (size_t i = 0; i < size; i++) payload[i] = (char)random();
    if (per_transaction) check(rd_kafka_init_transactions(rk, 30000));
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[3], NULL);
    const struct rd_kafka_metadata *metadata;
    if (rd_kafka_metadata(rk, 0, topic, &metadata, 10000)) die("metadata", "no answer");
    rd_kafka_metadata_destroy(metadata);
    double begin = now_s();
    for (long i = 0; i < count; i++) {
        if (per_transaction && i % per_transaction == 0) {
            if (i) check(rd_kafka_commit_transaction(rk, 30000));
            check(rd_kafka_begin_transaction(rk));
        }
        char key[12];
        int length = snprintf(key, sizeof key, "key%08ld", i % 1000);
        while (rd_kafka_produce(topic, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY, payload, size, key, length, NULL))
            rd_kafka_poll(rk, 10);
        if (i % 256 == 0) rd_kafka_poll(rk, 0);
    }
    if (per_transaction) check(rd_kafka_commit_transaction(rk, 30000));
    while (delivered + failed < count) rd_kafka_poll(rk, 100);
    printf("%f %ld\n", now_s() - begin, delivered);
}

static void consume(char **argv) {
    long count = atol(argv[4]), found = 0;
    rd_kafka_conf_t *conf = configure(argv[2]);
    set(conf, "fetch.wait.max.ms", "100");
    set(conf, "group.id", "bench");
    set(conf, "queued.min.messages", "1000000");
    rd_kafka_t *rk = open_client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[3], NULL);
    const struct rd_kafka_metadata *metadata;
    if (rd_kafka_metadata(rk, 0, topic, &metadata, 10000)) die("metadata", "no answer");
    int partitions = metadata->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(metadata);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    double begin = now_s();
    for (int p = 0; p < partitions; p++)
        if (rd_kafka_consume_start_queue(topic, p, RD_KAFKA_OFFSET_BEGINNING, queue)) die("consume", "start");
    static rd_kafka_message_t *messages[10000];
    while (found < count) {
        ssize_t n = rd_kafka_consume_batch_queue(queue, 1000, messages, 10000);
        if (n < 0) die("consume", "batch");
        if (!n && now_s() - begin > 120) die("consume", "too slow");
        for (ssize_t i = 0; i < n; i++) {
            if (!messages[i]->err) found++;
            rd_kafka_message_destroy(messages[i]);
        }
    }
    printf("%f %ld\n", now_s() - begin, found);
}

static int compare(const void *a, const void *b) {
    double x = *(double *)a, y = *(double *)b;
    return x < y ? -1 : x > y;
}

static void tell(long count) {
    qsort(delays, count, sizeof *delays, compare);
    printf("%f %f\n", delays[count / 2] * 1e6, delays[count * 99 / 100] * 1e6);
}

static void ask(char **argv) {
    long count = atol(argv[4]), warm = 200;
    size_t size = atol(argv[5]);
    rd_kafka_t *rk = producer(argv[2], "0");
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[3], NULL);
    char *payload = calloc(1, size);
    delays = malloc(count * sizeof *delays);
    for (long i = -warm; i < count; i++) {
        double begin = now_s();
        long before = delivered;
        rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, payload, size, NULL, 0, NULL);
        while (delivered == before && !failed) rd_kafka_poll(rk, 100);
        if (failed) exit(1);
        if (i >= 0) delays[i] = now_s() - begin;
    }
    tell(count);
}

static char **arguments;
static volatile int ready;

static void *receive(void *unused) {
    long count = atol(arguments[4]), found = -1;
    rd_kafka_conf_t *conf = configure(arguments[2]);
    set(conf, "group.id", "bench");
    set(conf, "fetch.wait.max.ms", "500");
    rd_kafka_t *rk = open_client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, arguments[3], NULL);
    if (rd_kafka_consume_start(topic, 0, RD_KAFKA_OFFSET_BEGINNING)) die("consume", "start");
    while (found < count) {
        rd_kafka_message_t *message = rd_kafka_consume(topic, 0, 1000);
        if (!message) continue;
        if (!message->err) {
            double sent;
            memcpy(&sent, message->payload, sizeof sent);
            if (found >= 0) delays[found] = now_s() - sent;
            found++;
            ready = 1;
        }
        rd_kafka_message_destroy(message);
    }
    return NULL;
}

static void pass(char **argv) {
    long count = atol(argv[4]);
    size_t size = atol(argv[5]);
    double interval = 1.0 / atof(argv[6]);
    arguments = argv;
    delays = malloc((count + 1) * sizeof *delays);
    rd_kafka_t *rk = producer(argv[2], "0");
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[3], NULL);
    char *payload = calloc(1, size);
    pthread_t thread;
    pthread_create(&thread, NULL, receive, NULL);
    for (long i = 0; i <= count; i++) {
        double sent = now_s();
        memcpy(payload, &sent, sizeof sent);
        rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, payload, size, NULL, 0, NULL);
        while (!ready) rd_kafka_poll(rk, 100);
        if (!i) { /* both are warm */
            struct timespec second = {1, 0};
            nanosleep(&second, NULL);
        }
        double rest = sent + interval - now_s();
        if (rest > 0) {
            struct timespec pause = {(time_t)rest, (long)((rest - (time_t)rest) * 1e9)};
            nanosleep(&pause, NULL);
        }
        rd_kafka_poll(rk, 0);
    }
    pthread_join(thread, NULL);
    tell(count);
}

static void crowd(char **argv) {
    int connections = atoi(argv[5]), one = 1, events = epoll_create1(0);
    long count = atol(argv[6]), sent = 0, answered = 0;
    static char frame[1 << 20], answer[1 << 16];
    int *peers = calloc(connections, sizeof *peers);
    FILE *file = fopen(argv[4], "rb");
    size_t size = file ? fread(frame, 1, sizeof frame, file) : 0;
    if (!size) die(argv[4], "no frame");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &address.sin_addr);
    for (int i = 0; i < connections; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect", "refused");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(events, EPOLL_CTL_ADD, fd, &event);
        peers[i] = fd;
    }
    double begin = now_s();
    for (; sent < connections; sent++)
        if (write(peers[sent], frame, size) != (ssize_t)size) die("write", "short");
    while (answered < count) {
        struct epoll_event found[64];
        int n = epoll_wait(events, found, 64, 10000);
        if (n <= 0) die("epoll", "no answer in 10 s");
        for (int i = 0; i < n; i++) {
            int fd = found[i].data.fd;
            if (read(fd, answer, sizeof answer) <= 0) die("read", "closed");
            answered++;
            if (sent < count && ++sent && write(fd, frame, size) != (ssize_t)size) die("write", "short");
        }
    }
    printf("%f %ld\n", now_s() - begin, answered);
}

int main(int argc, char **argv) {
    if (argc == 10 && !strcmp(argv[1], "produce")) produce(argv);
    else if (argc == 5 && !strcmp(argv[1], "consume")) consume(argv);
    else if (argc == 6 && !strcmp(argv[1], "ask")) ask(argv);
    else if (argc == 7 && !strcmp(argv[1], "pass")) pass(argv);
    else if (argc == 7 && !strcmp(argv[1], "crowd")) crowd(argv);
    else die("usage", "see the head of wire_client.c");
    fflush(stdout);
    _Exit(failed ? 1 : 0); /* nothing here needs closing */
}
