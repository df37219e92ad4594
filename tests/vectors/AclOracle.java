import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.PluginMetrics;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/** Kafka's StandardAuthorizer, asked by lines of tab-separated words: S(cenario), A(cl), Q(uestion), T(ype's question). */
public class AclOracle {
    record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() { return "SASL_PLAINTEXT"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.SASL_PLAINTEXT; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return ""; }
        public int correlationId() { return 0; }
    }

    static Context context(String principal, String host) throws Exception {
        String[] parts = principal.split(":", 2);
        return new Context(new KafkaPrincipal(parts[0], parts[1]), InetAddress.getByName(host));
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StandardAuthorizer authorizer = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            switch (words[0]) {
                case "S" -> {
                    Map<String, Object> configs = new HashMap<>();
                    configs.put("allow.everyone.if.no.acl.found", words[1]);
                    configs.put("super.users", words[2]);
                    authorizer = new StandardAuthorizer();
                    authorizer.configure(configs);
                    authorizer.withPluginMetrics(metrics());
                    authorizer.completeInitialLoad();
                }
                case "A" -> authorizer.addAcl(Uuid.randomUuid(), new StandardAcl(
                    ResourceType.valueOf(words[1]), words[2], PatternType.valueOf(words[3]), words[4], words[5],
                    AclOperation.valueOf(words[6]), AclPermissionType.valueOf(words[7])));
                case "Q" -> {
                    Action action = new Action(AclOperation.valueOf(words[3]), new ResourcePattern(
                        ResourceType.valueOf(words[4]), words[5], PatternType.LITERAL), 1, true, true);
                    say(authorizer.authorize(context(words[1], words[2]), List.of(action)).get(0));
                }
                case "T" -> say(authorizer.authorizeByResourceType(
                    context(words[1], words[2]), AclOperation.valueOf(words[3]), ResourceType.valueOf(words[4])));
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    /** The authorizer counts what it decides; nobody looks. */
    static PluginMetrics metrics() {
        Metrics metrics = new Metrics();
        return (PluginMetrics) Proxy.newProxyInstance(AclOracle.class.getClassLoader(), new Class<?>[] {PluginMetrics.class},
            (proxy, method, given) -> switch (method.getName()) {
                case "addSensor" -> metrics.sensor((String) given[0]);
                case "metricName" -> metrics.metricName((String) given[0], "acls");
                default -> null;
            });
    }

    static void say(AuthorizationResult result) {
        System.out.print(result == AuthorizationResult.ALLOWED ? "1" : "0");
    }
}
