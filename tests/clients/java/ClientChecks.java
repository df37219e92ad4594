import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The Java client's driver: plays one scenario and prints what it saw as JSON, as the drivers of the other clients do. */
public final class ClientChecks {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int LIMIT_S = 30;

    private static String bootstrap;
    private static JsonNode arguments;

    public static void main(String[] argv) throws Exception {
        arguments = JSON.readTree(argv[1]);
        bootstrap = text("bootstrap");
        Map<String, Object> result;
        switch (argv[0]) {
            case "produce": result = produced(Map.of("enable.idempotence", "false")); break;
            case "idempotent": result = produced(Map.of("enable.idempotence", "true")); break;
            case "compression": result = compression(); break;
            case "transactions": result = transactions(); break;
            case "timeout": result = timeout(); break;
            case "read_committed": result = Map.of("values", values(read(text("topic"), count(), "read_committed"))); break;
            case "group": result = group(); break;
            case "static": result = staticMembers(); break;
            case "admin": result = admin(); break;
            default: throw new IllegalArgumentException(argv[0]);
        }
        System.out.println(JSON.writeValueAsString(result));
    }

    private static String text(String name) {
        return arguments.get(name).asText();
    }

    private static int count() {
        return arguments.get("count").asInt();
    }

    private static void until(BooleanSupplier done, Runnable turn) {
        long limit = System.nanoTime() + LIMIT_S * 1_000_000_000L;
        while (!done.getAsBoolean()) {
            if (System.nanoTime() > limit) {
                throw new IllegalStateException("still waiting after " + LIMIT_S + " s");
            }
            turn.run();
        }
    }

    private static Properties properties(Map<String, String> more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        if (arguments.has("security")) {
            JsonNode security = arguments.get("security");
            properties.put("security.protocol", "SASL_SSL");
            properties.put("sasl.mechanism", security.get("mechanism").asText());
            properties.put("sasl.jaas.config", "org.apache.kafka.common.security.scram.ScramLoginModule required username=\""
                + security.get("username").asText() + "\" password=\"" + security.get("password").asText() + "\";");
            properties.put("ssl.truststore.type", "PEM");
            properties.put("ssl.truststore.location", security.get("ca").asText());
        }
        properties.putAll(more);
        return properties;
    }

    private static KafkaProducer<String, String> producer(Map<String, String> more) {
        return new KafkaProducer<>(properties(more), new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(Map<String, String> more) {
        Properties properties = properties(Map.of("auto.offset.reset", "earliest", "enable.auto.commit", "false"));
        properties.putAll(more);
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }

    private static List<ConsumerRecord<String, String>> polled(KafkaConsumer<String, String> client, int timeoutMs) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        client.poll(Duration.ofMillis(timeoutMs)).forEach(found::add);
        return found;
    }

    private static List<ConsumerRecord<String, String>> read(String topic, int count, String isolation) {
        try (KafkaConsumer<String, String> client = consumer(Map.of("isolation.level", isolation))) {
            List<TopicPartition> partitions = new ArrayList<>();
            client.partitionsFor(topic).forEach(info -> partitions.add(new TopicPartition(topic, info.partition())));
            client.assign(partitions);
            List<ConsumerRecord<String, String>> seen = new ArrayList<>();
            until(() -> seen.size() >= count, () -> seen.addAll(polled(client, 100)));
            seen.addAll(polled(client, 300)); // what comes directly behind them
            return seen;
        }
    }

    private static List<String> values(List<ConsumerRecord<String, String>> records) {
        List<String> values = new ArrayList<>();
        records.forEach(record -> values.add(record.value()));
        return values;
    }

    private static void send(String topic, int count, Map<String, String> settings) throws Exception {
        try (KafkaProducer<String, String> client = producer(settings)) {
            List<java.util.concurrent.Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                ProducerRecord<String, String> record = new ProducerRecord<>(topic, "k" + i, "v" + i);
                record.headers().add("n", Integer.toString(i).getBytes());
                sent.add(client.send(record));
            }
            for (java.util.concurrent.Future<RecordMetadata> each : sent) {
                each.get();
            }
        }
    }

    private static Map<String, Object> produced(Map<String, String> settings) throws Exception {
        send(text("topic"), count(), settings);
        List<ConsumerRecord<String, String>> seen = read(text("topic"), count(), "read_uncommitted");
        seen.sort(Comparator.<ConsumerRecord<String, String>>comparingInt(ConsumerRecord::partition)
            .thenComparingLong(ConsumerRecord::offset));
        List<Object> rows = new ArrayList<>();
        for (ConsumerRecord<String, String> record : seen) {
            Map<String, String> headers = new HashMap<>();
            for (Header header : record.headers()) {
                headers.put(header.key(), new String(header.value()));
            }
            rows.add(List.of(record.partition(), record.offset(), record.key(), record.value(), headers));
        }
        return Map.of("failed", List.of(), "records", rows);
    }

    private static Map<String, Object> compression() throws Exception {
        Map<String, Integer> counts = new LinkedHashMap<>();
        for (JsonNode codec : arguments.get("codecs")) {
            String topic = text("topic") + "-" + codec.asText();
            send(topic, count(), Map.of("compression.type", codec.asText()));
            counts.put(codec.asText(), read(topic, count(), "read_uncommitted").size());
        }
        return Map.of("failed", List.of(), "counts", counts);
    }

    private static Map<String, Object> transactions() {
        String source = text("source");
        String target = text("target");
        String group = text("group");
        long offset;
        try (KafkaProducer<String, String> writer = producer(Map.of("transactional.id", group + "-writer"));
                KafkaConsumer<String, String> reader =
                    consumer(Map.of("group.id", group, "isolation.level", "read_committed"))) {
            writer.initTransactions();
            writer.beginTransaction();
            for (int i = 0; i < 5; i++) {
                writer.send(new ProducerRecord<>(target, "aborted" + i));
            }
            writer.flush();
            writer.abortTransaction();
            reader.subscribe(List.of(source));
            List<ConsumerRecord<String, String>> seen = new ArrayList<>();
            until(() -> seen.size() >= 10, () -> seen.addAll(polled(reader, 100)));
            writer.beginTransaction();
            seen.forEach(record -> writer.send(new ProducerRecord<>(target, record.key(), record.value())));
            TopicPartition at = new TopicPartition(source, 0);
            writer.sendOffsetsToTransaction(Map.of(at, new OffsetAndMetadata(reader.position(at))), reader.groupMetadata());
            writer.commitTransaction();
            offset = reader.committed(Set.of(at)).get(at).offset();
        }
        return Map.of(
            "committed", values(read(target, 10, "read_committed")),
            "all", read(target, 15, "read_uncommitted").size(),
            "offset", offset);
    }

    /** A transaction that the broker aborts by its timeout, and what its producer can do then. */
    private static Map<String, Object> timeout() throws Exception {
        String topic = text("topic");
        Map<String, String> settings = Map.of("transactional.id", topic, "transaction.timeout.ms", "100");
        String refusal = "none";
        try (KafkaProducer<String, String> writer = producer(settings); Admin client = Admin.create(properties(Map.of()))) {
            writer.initTransactions();
            writer.beginTransaction();
            writer.send(new ProducerRecord<>(topic, "late")).get();
            List<String> states = new ArrayList<>();
            until(() -> states.contains("CompleteAbort"), () -> states.add(state(client, topic)));
            try {
                writer.send(new ProducerRecord<>(topic, "later")).get();
            } catch (ExecutionException error) {
                refusal = error.getCause().getClass().getSimpleName();
            }
            writer.abortTransaction();
            for (int i = 0; i < 2; i++) {
                writer.beginTransaction();
                writer.send(new ProducerRecord<>(topic, "again" + i));
                writer.commitTransaction();
            }
        }
        return Map.of("refusal", refusal, "committed", values(read(topic, 2, "read_committed")));
    }

    private static String state(Admin client, String transactionalId) {
        try {
            return client.describeTransactions(List.of(transactionalId)).description(transactionalId).get().state().toString();
        } catch (ExecutionException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    /** A consumer of a group that notes what it was given and what was taken from it. */
    private static final class Member implements ConsumerRebalanceListener, AutoCloseable {
        final List<ConsumerRecord<String, String>> records = new ArrayList<>();
        final Set<Integer> held = new TreeSet<>();
        int gaveUp;
        int assignments;
        final KafkaConsumer<String, String> client;

        Member(Map<String, String> more) {
            Map<String, String> settings = new HashMap<>(more);
            settings.put("group.id", text("group"));
            if (!more.containsKey("group.protocol")) {
                settings.putAll(Map.of("session.timeout.ms", "10000", "heartbeat.interval.ms", "300"));
            }
            client = consumer(settings);
            client.subscribe(List.of(text("topic")), this);
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assignments++;
            partitions.forEach(at -> held.add(at.partition()));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            gaveUp += partitions.size();
            partitions.forEach(at -> held.remove(at.partition()));
        }

        void turn() {
            records.addAll(polled(client, 50));
        }

        @Override
        public void close() {
            client.close();
        }
    }

    private static Map<String, Object> group() throws Exception {
        String strategy = text("strategy");
        Map<String, String> more = strategy.equals("consumer")
            ? Map.of("group.protocol", "consumer")
            : Map.of("partition.assignment.strategy", strategy);
        try (Member one = new Member(more)) {
            until(() -> one.held.size() == 4, one::turn);
            Member two = new Member(more);
            Runnable turns = () -> {
                one.turn();
                two.turn();
            };
            until(() -> one.held.size() == 2 && two.held.size() == 2, turns);
            int moved = one.gaveUp;
            List<Object> shares = List.of(new ArrayList<>(one.held), new ArrayList<>(two.held));
            send(text("topic"), 40, Map.of());
            until(() -> one.records.size() + two.records.size() >= 40, turns);
            one.client.commitSync();
            two.client.commitSync();
            List<String> seen = values(one.records);
            seen.addAll(values(two.records));
            Collections.sort(seen);
            two.close();
            until(() -> one.held.size() == 4, one::turn);
            return Map.of("failed", List.of(), "moved", moved, "shares", shares, "seen", seen);
        }
    }

    private static Map<String, Object> staticMembers() {
        Member one = new Member(Map.of("group.instance.id", "one"));
        Member two = new Member(Map.of("group.instance.id", "two"));
        until(() -> one.held.size() == 2 && two.held.size() == 2, () -> {
            one.turn();
            two.turn();
        });
        int before = one.assignments;
        Set<Integer> held = new TreeSet<>(two.held);
        two.close();
        Member again = new Member(Map.of("group.instance.id", "two"));
        until(() -> !again.held.isEmpty(), () -> {
            one.turn();
            again.turn();
        });
        for (int i = 0; i < 10; i++) {
            one.turn();
        }
        Map<String, Object> result = Map.of("same", again.held.equals(held), "rebalances", one.assignments - before);
        one.close();
        again.close();
        return result;
    }

    private static String retention(Admin client, ConfigResource resource) throws Exception {
        return client.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value();
    }

    private static Map<String, Object> admin() throws Exception {
        String topic = text("topic");
        String group = topic + "-group";
        TopicPartition at = new TopicPartition(topic, 0);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, Object> result = new HashMap<>();
        try (Admin client = Admin.create(properties(Map.of()))) {
            NewTopic wanted = new NewTopic(topic, Optional.of(2), Optional.empty()).configs(Map.of("retention.ms", "1000000"));
            client.createTopics(List.of(wanted)).all().get();
            result.put("created", retention(client, resource));
            AlterConfigOp set = new AlterConfigOp(new ConfigEntry("retention.ms", "2000000"), AlterConfigOp.OpType.SET);
            client.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
            result.put("changed", retention(client, resource));
            client.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            try (KafkaProducer<String, String> producer = producer(Map.of())) {
                for (int i = 0; i < 10; i++) {
                    producer.send(new ProducerRecord<>(topic, 0, null, "v" + i)).get();
                }
            }
            client.deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(4))).all().get();
            result.put("start", client.listOffsets(Map.of(at, OffsetSpec.earliest())).all().get().get(at).offset());
            client.alterConsumerGroupOffsets(group, Map.of(at, new OffsetAndMetadata(7))).all().get();
            boolean listed = client.listConsumerGroups().all().get().stream().anyMatch(found -> found.groupId().equals(group));
            result.put("listed", listed);
            result.put("committed", client.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(at).offset());
            client.describeCluster().nodes().get();
            client.describeTopics(List.of(topic)).allTopicNames().get();
            client.deleteConsumerGroups(List.of(group)).all().get();
            client.deleteTopics(List.of(topic)).all().get();
            until(() -> {
                try {
                    return !client.listTopics().names().get().contains(topic);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }, () -> { });
            result.put("gone", true);
        }
        return result;
    }
}
